import java.util.Arrays;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicReference;

/**
 * What is common to the clients of brokers that don't speak Kafka's protocol; each subclass is its vendor's Java client.
 *
 *   produce HOST PORT KIND COUNT SIZE BATCH     consume HOST PORT KIND COUNT     latency HOST PORT KIND COUNT SIZE RATE
 *
 * BATCH is how many messages go in one request, and 0 what the client does of itself.
 * Prints one JSON object as bench/client.c does. Sends at most WINDOW messages that are not confirmed. The first
 * half of a run is not in the rate: the compiler of the JVM warms up. "whole" is how long all of it took.
 */
abstract class Load {
    static final int WINDOW = 10_000;
    static final String NAME = "t";
    final Semaphore window = new Semaphore(WINDOW);
    final AtomicReference<Throwable> failure = new AtomicReference<>();
    String host;
    int port;
    String kind;
    int batch;

    /** Takes a message's value. */
    interface Sink {
        void take(byte[] value);
    }

    abstract void open() throws Exception;

    /** Hands one message to the client; `confirmed` or `failed` is called when the broker has it. */
    abstract void send(byte[] value) throws Exception;

    /** Sends what the client still holds. */
    void push() throws Exception {}

    /** Passes on `count` messages, from the log's begin or from now on. */
    abstract void receive(long count, boolean fromNow, Sink sink) throws Exception;

    void confirmed(int count) {
        window.release(count);
    }

    void failed(Throwable why) {
        failure.compareAndSet(null, why);
        window.release(WINDOW);
    }

    void check() {
        if (failure.get() != null)
            throw new IllegalStateException(failure.get());
    }

    void produce(long count, byte[] value) throws Exception {
        for (long sent = 0; sent < count; sent++) {
            if (!window.tryAcquire()) {
                push();
                window.acquire();
            }
            check();
            send(value);
        }
        push();
        window.acquire(WINDOW);
        check();
        window.release(WINDOW);
    }

    static void report(long messages, long bytes, long first, long begun) {
        long ended = System.nanoTime();
        System.out.printf("{\"messages\": %d, \"bytes\": %d, \"seconds\": %.6f, \"began\": %.6f, \"whole\": %.6f}%n",
                messages, bytes, (ended - begun) / 1e9, begun / 1e9, (ended - first) / 1e9);
    }

    void latency(long count, int size, long rate) throws Exception {
        long[] taken = new long[(int) count];
        int[] seen = {0};
        long warm = count / 10;
        CountDownLatch ready = new CountDownLatch(1);
        Thread reader = new Thread(() -> {
            try {
                receive(Long.MAX_VALUE, true, value -> {
                    long stamp = java.nio.ByteBuffer.wrap(value).getLong();
                    if (stamp == 0)
                        ready.countDown();
                    else if (seen[0] < count) {
                        taken[seen[0]] = System.nanoTime() - stamp;
                        synchronized (seen) {
                            seen[0]++;
                        }
                    }
                });
            } catch (Exception error) {
                failed(error);
            }
        });
        reader.setDaemon(true);
        reader.start();
        while (ready.getCount() > 0) {
            produce(1, new byte[size]);
            Thread.sleep(50);
            check();
        }
        long begun = System.nanoTime();
        for (long sent = 0; sent < count; sent++) {
            long due = rate > 0 ? begun + sent * 1_000_000_000L / rate : begun;
            for (long left; (left = due - System.nanoTime()) > 0;)
                if (left > 100_000)
                    Thread.sleep(0, (int) Math.min(left, 900_000));
            byte[] value = new byte[size];
            java.nio.ByteBuffer.wrap(value).putLong(due); // not the time of sending: waits in this client count
            window.acquire();
            send(value);
            push();
        }
        long deadline = System.nanoTime() + 30_000_000_000L;
        while (System.nanoTime() < deadline) {
            synchronized (seen) {
                if (seen[0] >= count)
                    break;
            }
            Thread.sleep(10);
            check();
        }
        double seconds = (System.nanoTime() - begun) / 1e9;
        if (seen[0] < count)
            throw new IllegalStateException("only " + seen[0] + " messages came back");
        long[] measured = Arrays.copyOfRange(taken, (int) warm, (int) count);
        Arrays.sort(measured);
        System.out.printf("{\"messages\": %d, \"bytes\": %d, \"seconds\": %.6f, \"p50\": %.6f, \"p99\": %.6f, "
                + "\"p999\": %.6f, \"highest\": %.6f}%n", count, count * size, seconds, at(measured, 0.5),
                at(measured, 0.99), at(measured, 0.999), measured[measured.length - 1] / 1e9);
    }

    static double at(long[] sorted, double part) {
        return sorted[(int) Math.min(sorted.length - 1, (long) (sorted.length * part))] / 1e9;
    }

    final void run(String[] a) throws Exception {
        host = a[1];
        port = Integer.parseInt(a[2]);
        kind = a[3];
        long count = Long.parseLong(a[4]);
        long warm = count / 2;
        if (a[0].equals("produce"))
            batch = Integer.parseInt(a[6]);
        open();
        if (a[0].equals("produce")) {
            byte[] value = new byte[Integer.parseInt(a[5])];
            Arrays.fill(value, (byte) 'a');
            long first = System.nanoTime();
            produce(warm, value);
            long begun = System.nanoTime();
            produce(count - warm, value);
            report(count - warm, (count - warm) * value.length, first, begun);
        } else if (a[0].equals("consume")) {
            long[] seen = {0, 0, 0};
            long first = System.nanoTime();
            receive(count, false, value -> {
                if (seen[0]++ == warm)
                    seen[2] = System.nanoTime();
                else if (seen[0] > warm)
                    seen[1] += value.length;
            });
            report(count - warm - 1, seen[1], first, seen[2]);
        } else
            latency(count, Integer.parseInt(a[5]), Long.parseLong(a[6]));
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }
}
