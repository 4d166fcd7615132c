import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Transactional producers on Apache Kafka's own client, for bench/transactions.py.
 *
 * Transactions SERVERS PREFIX PRODUCERS WARM SECONDS MESSAGES SIZE PARTITIONS GROUP TOPIC...
 *
 * Each of PRODUCERS threads has a producer whose transactional id begins with PREFIX, and runs one transaction after the
 * other: MESSAGES messages of SIZE bytes, in turn for PARTITIONS partitions of each topic; GROUP, unless it is "-", gets
 * an offset for each partition in the transaction. After WARM seconds it prints "begin", after SECONDS more "end", then
 * what bench/loads/transact.c prints.
 */
public final class Transactions {
    private static volatile boolean measuring, ended;
    private static final AtomicLong aborted = new AtomicLong();

    private final List<Long> commits = new ArrayList<>(), wholes = new ArrayList<>();

    public static void main(String[] words) throws Exception {
        int count = Integer.parseInt(words[2]);
        CountDownLatch ready = new CountDownLatch(count);
        List<Transactions> found = new ArrayList<>();
        List<Thread> threads = new ArrayList<>();
        for (int number = 0; number < count; number++) {
            Transactions one = new Transactions();
            String id = words[1] + "-" + number;
            found.add(one);
            Thread thread = new Thread(() -> one.run(words, id, ready));
            thread.setUncaughtExceptionHandler((who, why) -> {
                why.printStackTrace();
                Runtime.getRuntime().halt(1);
            });
            threads.add(thread);
            thread.start();
        }
        ready.await();
        Thread.sleep((long) (1000 * Double.parseDouble(words[3])));
        measuring = true;
        System.out.println("begin");
        System.out.flush();
        long begun = System.nanoTime();
        Thread.sleep((long) (1000 * Double.parseDouble(words[4])));
        measuring = false;
        double seconds = (System.nanoTime() - begun) / 1e9;
        System.out.println("end");
        System.out.flush();
        ended = true;
        for (Thread thread : threads) thread.join();
        long[] commits = sorted(found, true), wholes = sorted(found, false);
        System.out.printf(
                "{\"transactions\": %d, \"seconds\": %.6f, \"aborted\": %d, \"commit_p50\": %.6f, \"commit_p99\": %.6f, "
                        + "\"whole_p50\": %.6f, \"whole_p99\": %.6f}%n",
                commits.length, seconds, aborted.get(), at(commits, 50), at(commits, 99), at(wholes, 50), at(wholes, 99));
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }

    private static long[] sorted(List<Transactions> found, boolean commits) {
        return found.stream()
                .flatMap(one -> (commits ? one.commits : one.wholes).stream())
                .mapToLong(Long::longValue)
                .sorted()
                .toArray();
    }

    private static double at(long[] values, int percent) {
        return values.length == 0 ? 0 : values[Math.min(values.length - 1, values.length * percent / 100)] / 1e9;
    }

    private void run(String[] words, String id, CountDownLatch ready) {
        int messages = Integer.parseInt(words[5]), partitions = Integer.parseInt(words[7]);
        byte[] value = new byte[Integer.parseInt(words[6])];
        Arrays.fill(value, (byte) 'v');
        String[] topics = Arrays.copyOfRange(words, 9, words.length);
        Properties properties = new Properties();
        properties.put("bootstrap.servers", words[0]);
        properties.put("transactional.id", id);
        KafkaProducer<byte[], byte[]> producer =
                new KafkaProducer<>(properties, new ByteArraySerializer(), new ByteArraySerializer());
        producer.initTransactions();
        ready.countDown();
        for (long done = 0; !ended; done++) {
            long begun = System.nanoTime();
            try {
                producer.beginTransaction();
                for (int number = 0; number < messages; number++) {
                    int at = number % (partitions * topics.length);
                    producer.send(new ProducerRecord<>(topics[at % topics.length], at / topics.length, null, value));
                }
                if (!words[8].equals("-"))
                    producer.sendOffsetsToTransaction(offsets(topics, partitions, done), new ConsumerGroupMetadata(words[8]));
                long committing = System.nanoTime();
                producer.commitTransaction();
                long now = System.nanoTime();
                if (measuring) {
                    commits.add(now - committing);
                    wholes.add(now - begun);
                }
            } catch (ProducerFencedException error) {
                throw error;
            } catch (RuntimeException error) {
                aborted.incrementAndGet();
                producer.abortTransaction();
            }
        }
    }

    private static Map<TopicPartition, OffsetAndMetadata> offsets(String[] topics, int partitions, long offset) {
        Map<TopicPartition, OffsetAndMetadata> found = new HashMap<>();
        for (String topic : topics)
            for (int index = 0; index < partitions; index++)
                found.put(new TopicPartition(topic, index), new OffsetAndMetadata(offset));
        return found;
    }
}
