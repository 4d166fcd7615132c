import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.File;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.errors.ClusterAuthorizationException;
import org.apache.kafka.common.errors.GroupAuthorizationException;
import org.apache.kafka.common.errors.SaslAuthenticationException;
import org.apache.kafka.common.errors.TopicAuthorizationException;

/** Kafka's Java client: the tasks of conformance/secure/tasks.py. The argument is the file of tasks. */
public class SecureClient {
    static final Duration STEP = Duration.ofSeconds(60);
    static final String STRING = "org.apache.kafka.common.serialization.String";

    interface Work { void run() throws Exception; }

    static Properties settings(JsonNode task) {
        Properties found = new Properties();
        task.get("properties").fields().forEachRemaining(one -> found.put(one.getKey(), one.getValue().asText()));
        found.put("key.serializer", STRING + "Serializer");
        found.put("value.serializer", STRING + "Serializer");
        found.put("key.deserializer", STRING + "Deserializer");
        found.put("value.deserializer", STRING + "Deserializer");
        found.put("group.id", task.get("group").asText());
        found.put("auto.offset.reset", "earliest");
        found.put("default.api.timeout.ms", String.valueOf(STEP.toMillis()));
        return found;
    }

    static String topic(JsonNode task) { return task.get("topic").asText(); }

    static void create(JsonNode task, String topic) throws Exception {
        try (Admin admin = Admin.create(settings(task))) {
            admin.createTopics(List.of(new NewTopic(topic, 2, (short) 1))).all().get(60, TimeUnit.SECONDS);
        }
    }

    static void produce(JsonNode task, int count) throws Exception {
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(settings(task))) {
            List<Future<RecordMetadata>> sent = new ArrayList<>();
            for (int n = 0; n < count; n++) {
                sent.add(producer.send(new ProducerRecord<>(topic(task), "value " + n)));
            }
            for (Future<RecordMetadata> one : sent) {
                one.get(60, TimeUnit.SECONDS);
            }
        }
    }

    static List<String> consume(JsonNode task, int count) {
        List<String> found = new ArrayList<>();
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(settings(task))) {
            consumer.subscribe(List.of(topic(task)));
            long end = System.nanoTime() + STEP.toNanos();
            while (found.size() < count && System.nanoTime() < end) {
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(200))) {
                    found.add(record.value());
                }
            }
            consumer.commitSync();
        }
        return found;
    }

    static void compare(List<String> found, int count) throws Exception {
        List<String> wanted = new ArrayList<>();
        for (int n = 0; n < count; n++) {
            wanted.add("value " + n);
        }
        Collections.sort(wanted);
        List<String> sorted = new ArrayList<>(found);
        Collections.sort(sorted);
        if (!sorted.equals(wanted)) {
            throw new Exception(found.size() + " records came, " + count + " were sent");
        }
    }

    static void roundTrip(JsonNode task) throws Exception {
        create(task, topic(task));
        int count = task.get("records").asInt();
        produce(task, count);
        compare(consume(task, count), count);
    }

    /** The work has to fail with an exception of one of these classes, or because of one. */
    static void expect(String what, Work work, Class<?>... wanted) throws Exception {
        try {
            work.run();
        } catch (Exception error) {
            for (Throwable cause = error; cause != null; cause = cause.getCause()) {
                for (Class<?> one : wanted) {
                    if (one.isInstance(cause)) {
                        return;
                    }
                }
            }
            throw new Exception(what + ": " + error, error);
        }
        throw new Exception(what + " was not refused");
    }

    static void forbidden(JsonNode task) throws Exception {
        expect("creating a topic", () -> create(task, topic(task) + "-new"),
            TopicAuthorizationException.class, ClusterAuthorizationException.class);
        expect("producing", () -> produce(task, 1), TopicAuthorizationException.class);
        expect("joining a group", () -> consume(task, 1),
            GroupAuthorizationException.class, TopicAuthorizationException.class);
    }

    static void sessions(JsonNode task) throws Exception {
        create(task, topic(task));
        Properties settings = settings(task);
        settings.put("retries", "0");
        settings.put("enable.idempotence", "false");
        List<String> found = new ArrayList<>();
        int sent = 0;
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(settings);
             KafkaConsumer<String, String> consumer = new KafkaConsumer<>(settings)) {
            consumer.subscribe(List.of(topic(task)));
            long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(task.get("seconds").asInt());
            while (System.nanoTime() < end || (found.size() < sent && System.nanoTime() < end + STEP.toNanos())) {
                if (System.nanoTime() < end) {
                    producer.send(new ProducerRecord<>(topic(task), "value " + sent)).get(60, TimeUnit.SECONDS);
                    sent++;
                }
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(100))) {
                    found.add(record.value());
                }
            }
            if (total(producer, "successful-reauthentication-total") < 2
                || total(producer, "failed-reauthentication-total") > 0) {
                throw new Exception("the producer did not authenticate again");
            }
        }
        compare(found, sent);
    }

    static double total(KafkaProducer<?, ?> producer, String name) {
        return producer.metrics().values().stream()
            .filter(one -> one.metricName().name().equals(name) && one.metricName().group().equals("producer-metrics"))
            .mapToDouble(one -> (Double) one.metricValue()).sum();
    }

    static void act(JsonNode task) throws Exception {
        switch (task.get("action").asText()) {
            case "round trip" -> roundTrip(task);
            case "refused" -> expect("connecting", () -> create(task, topic(task)), SaslAuthenticationException.class);
            case "forbidden" -> forbidden(task);
            case "traffic over three sessions" -> sessions(task);
            default -> throw new Exception("no such action");
        }
    }

    public static void main(String[] arguments) throws Exception {
        int failed = 0;
        for (JsonNode task : new ObjectMapper().readTree(new File(arguments[0]))) {
            String name = task.get("name").asText();
            try {
                act(task);
                System.out.println("ok " + name);
            } catch (Exception error) {
                failed++;
                System.out.println("not ok " + name + ": " + String.valueOf(error).replace('\n', ' '));
            }
        }
        System.exit(failed == 0 ? 0 : 1);
    }
}
