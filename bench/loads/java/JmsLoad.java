import javax.jms.BytesMessage;
import javax.jms.Connection;
import javax.jms.DeliveryMode;
import javax.jms.MessageConsumer;
import javax.jms.Session;
import org.apache.activemq.ActiveMQConnectionFactory;
import org.apache.activemq.ActiveMQMessageProducer;
import org.apache.activemq.AsyncCallback;
import javax.jms.JMSException;

/** ActiveMQ's queues: persistent messages, asynchronous sends with a callback, DUPS_OK consumers; activemq-client. */
public final class JmsLoad extends Load {
    private Connection connection;
    private Session session;
    private ActiveMQMessageProducer producer;

    public static void main(String[] arguments) throws Exception {
        new JmsLoad().run(arguments);
    }

    @Override
    void open() throws Exception {
        ActiveMQConnectionFactory factory = new ActiveMQConnectionFactory("tcp://" + host + ":" + port);
        factory.setUseAsyncSend(true);
        connection = factory.createConnection();
        connection.start();
        session = connection.createSession(false, Session.DUPS_OK_ACKNOWLEDGE);
        producer = (ActiveMQMessageProducer) session.createProducer(session.createQueue(NAME));
        producer.setDeliveryMode(DeliveryMode.PERSISTENT);
    }

    @Override
    void send(byte[] value) throws Exception {
        BytesMessage message = session.createBytesMessage();
        message.writeBytes(value);
        producer.send(message, new AsyncCallback() {
            @Override
            public void onSuccess() {
                confirmed(1);
            }

            @Override
            public void onException(JMSException error) {
                failed(error);
            }
        });
    }

    @Override
    void receive(long count, boolean fromNow, Sink sink) throws Exception {
        Session own = connection.createSession(false, Session.DUPS_OK_ACKNOWLEDGE);
        MessageConsumer consumer = own.createConsumer(own.createQueue(NAME));
        for (long seen = 0; seen < count; seen++) {
            BytesMessage message = (BytesMessage) consumer.receive(30_000);
            if (message == null)
                throw new IllegalStateException("nothing came for 30 s");
            byte[] value = new byte[(int) message.getBodyLength()];
            message.readBytes(value);
            sink.take(value);
        }
    }
}
