import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.regex.Pattern;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.ConsumerGroupDescription;
import org.apache.kafka.clients.admin.ProducerState;
import org.apache.kafka.clients.admin.TransactionDescription;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.SubscriptionPattern;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;

/** Kafka's Java client: the operations of conformance/transacting/driver.py. The argument is the address. */
public class Transacting {
    static final ObjectMapper JSON = new ObjectMapper();
    static final Duration STEP = Duration.ofSeconds(30);
    static final String STRING = "org.apache.kafka.common.serialization.String";
    static final Map<String, KafkaProducer<String, String>> PRODUCERS = new HashMap<>();
    static final Map<String, KafkaConsumer<String, String>> CONSUMERS = new HashMap<>();
    static final Map<String, ConsumerGroupMetadata> METADATA = new HashMap<>();
    static String bootstrap;

    static class Lacks extends Exception { }

    static Properties settings() {
        Properties found = new Properties();
        found.put("bootstrap.servers", bootstrap);
        for (String side : List.of("key", "value")) {
            found.put(side + ".serializer", STRING + "Serializer");
            found.put(side + ".deserializer", STRING + "Deserializer");
        }
        return found;
    }

    static String text(JsonNode task, String name) {
        return task.hasNonNull(name) ? task.get(name).asText() : "";
    }

    static KafkaProducer<String, String> producerOf(JsonNode task) { return PRODUCERS.get(text(task, "name")); }

    static KafkaConsumer<String, String> consumerOf(JsonNode task) { return CONSUMERS.get(text(task, "name")); }

    static Object producer(JsonNode task) {
        Properties settings = settings();
        settings.put("transactional.id", text(task, "id"));
        settings.put("transaction.timeout.ms", text(task, "timeout"));
        settings.put("max.block.ms", "10000");
        settings.put("request.timeout.ms", "10000");
        settings.put("delivery.timeout.ms", "20000");
        PRODUCERS.put(text(task, "name"), new KafkaProducer<>(settings));
        return null;
    }

    static Object send(JsonNode task) throws Exception {
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        for (JsonNode value : task.get("values")) {
            sent.add(producerOf(task).send(
                new ProducerRecord<>(text(task, "topic"), task.get("partition").asInt(), null, value.asText())));
        }
        producerOf(task).flush();
        List<Long> offsets = new ArrayList<>();
        for (Future<RecordMetadata> one : sent) {
            offsets.add(one.get(30, TimeUnit.SECONDS).offset());
        }
        return offsets;
    }

    static Map<TopicPartition, OffsetAndMetadata> positions(JsonNode offsets) {
        Map<TopicPartition, OffsetAndMetadata> found = new HashMap<>();
        offsets.fields().forEachRemaining(topic -> topic.getValue().fields().forEachRemaining(one -> found.put(
            new TopicPartition(topic.getKey(), Integer.parseInt(one.getKey())),
            new OffsetAndMetadata(one.getValue().asLong()))));
        return found;
    }

    static Object offsets(JsonNode task) {
        ConsumerGroupMetadata metadata = task.hasNonNull("metadata")
            ? METADATA.get(text(task, "metadata")) : CONSUMERS.get(text(task, "consumer")).groupMetadata();
        producerOf(task).sendOffsetsToTransaction(positions(task.get("offsets")), metadata);
        return null;
    }

    static Object close(JsonNode task) {
        KafkaConsumer<String, String> consumer = CONSUMERS.remove(text(task, "name"));
        if (consumer != null) {
            consumer.close();
        } else {
            PRODUCERS.remove(text(task, "name")).close(Duration.ZERO);
        }
        return null;
    }

    static KafkaConsumer<String, String> reader(JsonNode task) {
        Properties settings = settings();
        settings.put("isolation.level", text(task, "isolation"));
        settings.put("auto.offset.reset", "earliest");
        return new KafkaConsumer<>(settings);
    }

    static List<TopicPartition> places(JsonNode task) {
        List<TopicPartition> found = new ArrayList<>();
        for (int index = 0; index < task.get("partitions").asInt(); index++) {
            found.add(new TopicPartition(text(task, "topic"), index));
        }
        return found;
    }

    static Object read(JsonNode task) {
        Map<String, List<String>> found = new TreeMap<>();
        try (KafkaConsumer<String, String> reader = reader(task)) {
            List<TopicPartition> places = places(task);
            places.forEach(place -> found.put(String.valueOf(place.partition()), new ArrayList<>()));
            Map<TopicPartition, Long> ends = reader.endOffsets(places);
            reader.assign(places);
            reader.seekToBeginning(places);
            long late = System.nanoTime() + STEP.toNanos();
            while (places.stream().anyMatch(place -> reader.position(place) < ends.get(place))
                && System.nanoTime() < late) {
                for (ConsumerRecord<String, String> record : reader.poll(Duration.ofMillis(500))) {
                    found.get(String.valueOf(record.partition())).add(record.value());
                }
            }
        }
        return found;
    }

    static Object ends(JsonNode task) {
        try (KafkaConsumer<String, String> reader = reader(task)) {
            Map<String, Long> found = new TreeMap<>();
            reader.endOffsets(places(task)).forEach((place, end) -> found.put(String.valueOf(place.partition()), end));
            return found;
        }
    }

    static Object consumer(JsonNode task) {
        Properties settings = settings();
        boolean newer = text(task, "protocol").equals("consumer");
        settings.put("group.id", text(task, "group"));
        settings.put("isolation.level", "read_committed");
        settings.put("enable.auto.commit", "false");
        settings.put("auto.offset.reset", "earliest");
        if (newer) {
            settings.put("group.protocol", "consumer");
        } else {
            settings.put("session.timeout.ms", "6000");
        }
        if (task.hasNonNull("most")) {
            settings.put("max.poll.records", text(task, "most"));
        }
        if (!text(task, "assignor").isEmpty()) {
            settings.put("group.remote.assignor", text(task, "assignor"));
        }
        if (!text(task, "instance").isEmpty()) {
            settings.put("group.instance.id", text(task, "instance"));
        }
        KafkaConsumer<String, String> made = new KafkaConsumer<>(settings);
        CONSUMERS.put(text(task, "name"), made);
        if (task.hasNonNull("topics")) {
            List<String> topics = new ArrayList<>();
            task.get("topics").forEach(topic -> topics.add(topic.asText()));
            made.subscribe(topics);
        } else if (task.hasNonNull("pattern")) {
            if (newer) {
                made.subscribe(new SubscriptionPattern(text(task, "pattern")));
            } else {
                made.subscribe(Pattern.compile(text(task, "pattern")));
            }
        }
        return null;
    }

    static Object poll(JsonNode task) {
        List<String> found = new ArrayList<>();
        consumerOf(task).poll(Duration.ofMillis(task.get("ms").asInt())).forEach(record -> found.add(record.value()));
        return found;
    }

    static Object records(JsonNode task) {
        List<List<Object>> found = new ArrayList<>();
        consumerOf(task).poll(Duration.ofMillis(task.get("ms").asInt())).forEach(record ->
            found.add(List.of(record.topic(), record.partition(), record.offset(), record.value())));
        return found;
    }

    static Object rewind(JsonNode task) {
        KafkaConsumer<String, String> consumer = consumerOf(task);
        consumer.committed(consumer.assignment(), STEP).forEach((place, committed) ->
            consumer.seek(place, committed == null ? 0 : committed.offset()));
        return null;
    }

    static List<String> names(Collection<TopicPartition> places) {
        return places.stream().map(TopicPartition::toString).sorted().toList();
    }

    static Object committed(JsonNode task) {
        Map<TopicPartition, OffsetAndMetadata> found =
            consumerOf(task).committed(new java.util.HashSet<>(places(task)), Duration.ofSeconds(6));
        List<Long> offsets = new ArrayList<>();
        for (TopicPartition place : places(task)) {
            offsets.add(found.get(place) == null ? null : found.get(place).offset());
        }
        return offsets;
    }

    static Object describeTransaction(JsonNode task) throws Exception {
        try (Admin admin = Admin.create(settings())) {
            String id = text(task, "id");
            TransactionDescription found =
                admin.describeTransactions(List.of(id)).description(id).get(30, TimeUnit.SECONDS);
            return Map.of("state", found.state().toString(), "timeout", found.transactionTimeoutMs(),
                "started", found.transactionStartTimeMs().isPresent(), "partitions", names(found.topicPartitions()),
                "listed", admin.listTransactions().all().get(30, TimeUnit.SECONDS).stream()
                    .filter(one -> one.transactionalId().equals(id)).map(one -> one.state().toString()).toList());
        }
    }

    static Object describeProducers(JsonNode task) throws Exception {
        try (Admin admin = Admin.create(settings())) {
            TopicPartition place = new TopicPartition(text(task, "topic"), task.get("partition").asInt());
            List<List<Object>> found = new ArrayList<>();
            for (ProducerState state : admin.describeProducers(List.of(place)).partitionResult(place)
                .get(30, TimeUnit.SECONDS).activeProducers()) {
                found.add(List.of(state.producerEpoch(), state.lastSequence(),
                    state.currentTransactionStartOffset().orElse(-1), state.coordinatorEpoch().orElse(-1)));
            }
            return found;
        }
    }

    static Object describeGroup(JsonNode task) throws Exception {
        try (Admin admin = Admin.create(settings())) {
            ConsumerGroupDescription found = admin.describeConsumerGroups(List.of(text(task, "group"))).all()
                .get(30, TimeUnit.SECONDS).get(text(task, "group"));
            List<String> shares = found.members().stream().map(one -> names(one.assignment().topicPartitions())
                + " " + names(one.targetAssignment().map(target -> target.topicPartitions()).orElse(java.util.Set.of()))
                + " " + one.groupInstanceId() + " " + one.upgraded()).sorted().toList();
            return Map.of("state", found.groupState().toString(), "type", found.type().toString(),
                "assignor", found.partitionAssignor(), "members", shares);
        }
    }

    static Object act(JsonNode task) throws Exception {
        switch (text(task, "do")) {
            case "producer": return producer(task);
            case "init": producerOf(task).initTransactions(); return null;
            case "begin": producerOf(task).beginTransaction(); return null;
            case "commit": producerOf(task).commitTransaction(); return null;
            case "abort": producerOf(task).abortTransaction(); return null;
            case "send": return send(task);
            case "offsets": return offsets(task);
            case "metadata":
                METADATA.put(text(task, "as"), CONSUMERS.get(text(task, "consumer")).groupMetadata());
                return null;
            case "close": return close(task);
            case "read": return read(task);
            case "ends": return ends(task);
            case "consumer": return consumer(task);
            case "poll": return poll(task);
            case "records": return records(task);
            case "rewind": return rewind(task);
            case "assignment": return names(consumerOf(task).assignment());
            case "commit_offsets": consumerOf(task).commitSync(positions(task.get("offsets"))); return null;
            case "committed": return committed(task);
            case "describe_transaction": return describeTransaction(task);
            case "describe_producers": return describeProducers(task);
            case "describe_group": return describeGroup(task);
            default: throw new Lacks();
        }
    }

    /** The classes of an exception and of its causes. */
    static String name(Throwable error) {
        List<String> names = new ArrayList<>();
        for (Throwable one = error; one != null; one = one.getCause()) {
            if (!(one instanceof ExecutionException)) {
                names.add(one.getClass().getSimpleName());
            }
        }
        return String.join(" < ", names);
    }

    public static void main(String[] arguments) throws Exception {
        bootstrap = arguments[0];
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            Map<String, Object> found = new HashMap<>();
            try {
                found.put("answer", act(JSON.readTree(line)));
            } catch (Lacks error) {
                found.put("lacks", true);
            } catch (Exception error) {
                System.err.println(line + ": " + error);
                found.put("error", name(error));
            }
            System.out.println(JSON.writeValueAsString(found));
        }
        System.exit(0);
    }
}
