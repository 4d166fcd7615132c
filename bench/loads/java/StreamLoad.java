import com.rabbitmq.stream.ByteCapacity;
import com.rabbitmq.stream.Environment;
import com.rabbitmq.stream.OffsetSpecification;
import com.rabbitmq.stream.Producer;
import com.rabbitmq.stream.ProducerBuilder;
import com.rabbitmq.stream.StreamException;
import java.time.Duration;
import java.util.concurrent.CountDownLatch;

/**
 * RabbitMQ's streams: confirmed publishes; the stream Java client. BATCH 0 leaves the batches to the client, which has
 * 16 messages or more in one whatever it is told; so a BATCH is kept to by its other way of gathering them.
 */
public final class StreamLoad extends Load {
    private Environment environment;
    private Producer producer;

    public static void main(String[] arguments) throws Exception {
        new StreamLoad().run(arguments);
    }

    @Override
    void open() {
        environment = Environment.builder().host(host).port(port).maxConsumersByConnection(1).build();
        try {
            environment.streamCreator().stream(NAME).maxLengthBytes(ByteCapacity.GB(100)).create();
        } catch (StreamException error) {
            if (error.getCode() != com.rabbitmq.stream.Constants.RESPONSE_CODE_STREAM_ALREADY_EXISTS)
                throw error;
        }
    }

    @Override
    void send(byte[] value) {
        if (producer == null)
            producer = producer();
        producer.send(producer.messageBuilder().addData(value).build(), status -> {
            if (status.isConfirmed())
                confirmed(1);
            else
                failed(new IllegalStateException("not confirmed: code " + status.getCode()));
        });
    }

    private Producer producer() {
        ProducerBuilder builder = environment.producerBuilder().stream(NAME).maxUnconfirmedMessages(WINDOW);
        if (batch > 0)
            builder.dynamicBatch(false).batchSize(batch).batchPublishingDelay(Duration.ofMillis(1));
        return builder.build();
    }

    @Override
    void receive(long count, boolean fromNow, Sink sink) throws Exception {
        CountDownLatch done = new CountDownLatch(1);
        long[] seen = {0};
        environment.consumerBuilder().stream(NAME)
                .offset(fromNow ? OffsetSpecification.next() : OffsetSpecification.first())
                .messageHandler((context, message) -> {
                    if (seen[0] >= count)
                        return;
                    sink.take(message.getBodyAsBinary());
                    if (++seen[0] == count)
                        done.countDown();
                }).build();
        done.await();
    }
}
