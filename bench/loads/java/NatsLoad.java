import io.nats.client.Connection;
import io.nats.client.JetStream;
import io.nats.client.JetStreamSubscription;
import io.nats.client.Message;
import io.nats.client.Nats;
import io.nats.client.Options;
import io.nats.client.PullSubscribeOptions;
import io.nats.client.api.AckPolicy;
import io.nats.client.api.ConsumerConfiguration;
import io.nats.client.api.DeliverPolicy;
import io.nats.client.api.StorageType;
import io.nats.client.api.StreamConfiguration;
import java.time.Duration;

/** JetStream: asynchronous publishes with confirmations, pull consumer without acknowledgements; jnats. */
public final class NatsLoad extends Load {
    private static final int PULL = 1000;
    private Connection connection;
    private JetStream stream;

    public static void main(String[] arguments) throws Exception {
        new NatsLoad().run(arguments);
    }

    @Override
    void open() throws Exception {
        Options options = new Options.Builder().server("nats://" + host + ":" + port).maxMessagesInOutgoingQueue(0)
                .build();
        connection = Nats.connect(options);
        connection.jetStreamManagement().addStream(StreamConfiguration.builder().name(NAME).subjects(NAME)
                .storageType(StorageType.File).build());
        stream = connection.jetStream();
    }

    @Override
    void send(byte[] value) {
        stream.publishAsync(NAME, value).whenComplete((acknowledged, error) -> {
            if (error == null)
                confirmed(1);
            else
                failed(error);
        });
    }

    @Override
    void receive(long count, boolean fromNow, Sink sink) throws Exception {
        ConsumerConfiguration consumer = ConsumerConfiguration.builder().ackPolicy(AckPolicy.None)
                .deliverPolicy(fromNow ? DeliverPolicy.New : DeliverPolicy.All).build();
        JetStreamSubscription subscription = stream.subscribe(NAME,
                PullSubscribeOptions.builder().configuration(consumer).build());
        for (long seen = 0; seen < count;) {
            subscription.pull(io.nats.client.PullRequestOptions.builder(PULL).expiresIn(Duration.ofSeconds(30)).build());
            for (int left = PULL; left > 0 && seen < count;) {
                Message message = subscription.nextMessage(Duration.ofSeconds(31));
                if (message == null)
                    break;
                if (message.isJetStream()) {
                    sink.take(message.getData());
                    seen++;
                    left--;
                } else
                    break;
            }
        }
    }
}
