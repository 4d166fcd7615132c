import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.serialization.SimpleStringSchema;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.kafka.sink.KafkaRecordSerializationSchema;
import org.apache.flink.connector.kafka.sink.KafkaSink;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;

/**
 * Copies a topic to another one exactly once, slowly, and fails by itself once: FlinkCopy BOOTSTRAP FROM TO CHECKPOINTS
 * FAIL_AT [RESUME_FROM]. The job runs until it is killed: a bounded one that is resumed never ends (FLINK-31006).
 */
public final class FlinkCopy {
    private static final AtomicLong COPIED = new AtomicLong();

    public static void main(String[] arguments) throws Exception {
        String bootstrap = arguments[0];
        long failAt = Long.parseLong(arguments[4]);
        Configuration settings = new Configuration();
        settings.setString("execution.checkpointing.interval", "1 s");
        settings.setString("execution.checkpointing.mode", "EXACTLY_ONCE");
        settings.setString("execution.checkpointing.externalized-checkpoint-retention", "RETAIN_ON_CANCELLATION");
        settings.setString("execution.checkpointing.dir", arguments[3]);
        settings.setString("restart-strategy.type", "fixed-delay");
        settings.setString("restart-strategy.fixed-delay.attempts", "100");
        settings.setString("restart-strategy.fixed-delay.delay", "1 s");
        settings.setString("taskmanager.memory.network.max", "64 mb");
        if (arguments.length > 5) {
            settings.setString("execution.state-recovery.path", arguments[5]);
        }
        StreamExecutionEnvironment environment = StreamExecutionEnvironment.createLocalEnvironment(2, settings);
        KafkaSource<String> source = KafkaSource.<String>builder()
            .setBootstrapServers(bootstrap)
            .setTopics(arguments[1])
            .setGroupId("flink-copy")
            .setStartingOffsets(OffsetsInitializer.earliest())
            .setValueOnlyDeserializer(new SimpleStringSchema())
            .build();
        KafkaSink<String> sink = KafkaSink.<String>builder()
            .setBootstrapServers(bootstrap)
            .setDeliveryGuarantee(DeliveryGuarantee.EXACTLY_ONCE)
            .setTransactionalIdPrefix("flink-copy")
            .setProperty("transaction.timeout.ms", "600000")
            .setRecordSerializer(KafkaRecordSerializationSchema.<String>builder()
                .setTopic(arguments[2]).setValueSerializationSchema(new SimpleStringSchema()).build())
            .build();
        environment.fromSource(source, WatermarkStrategy.noWatermarks(), "source")
            .map(value -> copied(value, failAt))
            .returns(String.class)
            .sinkTo(sink);
        environment.execute("copy");
    }

    private static String copied(String value, long failAt) throws Exception {
        long count = COPIED.incrementAndGet();
        if (count % 20 == 0) {
            TimeUnit.MILLISECONDS.sleep(20);
        }
        if (count == failAt) {
            throw new IllegalStateException("the failure that was asked for");
        }
        return value;
    }

    private FlinkCopy() {}
}
