import com.rabbitmq.client.AMQP;
import com.rabbitmq.client.CancelCallback;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.ConnectionFactory;
import com.rabbitmq.client.MessageProperties;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.CountDownLatch;

/** RabbitMQ's queues: persistent messages with publisher confirms, manual acknowledgements of 500 at once; amqp-client. */
public final class AmqpLoad extends Load {
    private static final int PREFETCH = 1000;
    private Connection connection;
    private Channel channel;
    private long acknowledged;

    public static void main(String[] arguments) throws Exception {
        new AmqpLoad().run(arguments);
    }

    @Override
    void open() throws Exception {
        ConnectionFactory factory = new ConnectionFactory();
        factory.setHost(host);
        factory.setPort(port);
        connection = factory.newConnection();
        channel = connection.createChannel();
        Map<String, Object> options = new HashMap<>();
        options.put("x-queue-type", kind);
        channel.queueDeclare(NAME, true, false, false, options);
        channel.confirmSelect();
        channel.addConfirmListener((tag, multiple) -> confirmedUpTo(tag, multiple),
                (tag, multiple) -> failed(new IllegalStateException("refused")));
    }

    private synchronized void confirmedUpTo(long tag, boolean multiple) {
        if (!multiple)
            confirmed(1);
        else
            confirmed((int) (tag - acknowledged - singles(tag)));
        if (multiple) {
            acknowledged = tag;
            ahead.removeIf(one -> one <= tag);
        } else
            ahead.add(tag);
    }

    private final java.util.HashSet<Long> ahead = new java.util.HashSet<>();

    private int singles(long tag) {
        int found = 0;
        for (long one : ahead)
            if (one <= tag)
                found++;
        return found;
    }

    @Override
    void send(byte[] value) throws Exception {
        channel.basicPublish("", NAME, (AMQP.BasicProperties) MessageProperties.PERSISTENT_BASIC, value);
    }

    @Override
    void receive(long count, boolean fromNow, Sink sink) throws Exception {
        CountDownLatch done = new CountDownLatch(1);
        long[] seen = {0};
        Channel reader = connection.createChannel();
        reader.basicQos(PREFETCH);
        CancelCallback cancelled = tag -> failed(new IllegalStateException("cancelled"));
        reader.basicConsume(NAME, false, (tag, delivery) -> {
            if (seen[0] >= count)
                return;
            sink.take(delivery.getBody());
            if (++seen[0] % (PREFETCH / 2) == 0 || seen[0] == count || fromNow)
                reader.basicAck(delivery.getEnvelope().getDeliveryTag(), true);
            if (seen[0] == count)
                done.countDown();
        }, cancelled);
        done.await();
    }
}
