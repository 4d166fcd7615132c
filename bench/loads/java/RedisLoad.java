import java.nio.charset.StandardCharsets;
import java.util.List;
import redis.clients.jedis.Connection;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.Protocol;

/**
 * XADD, written to the socket one by one or BATCH at once (100 if not told), the replies read by a thread of their own;
 * XREAD with COUNT; Jedis, whose own pipelines would wait for all replies before the next command.
 */
public final class RedisLoad extends Load {
    private static final byte[] STREAM = NAME.getBytes(StandardCharsets.UTF_8);
    private static final byte[] ANY_ID = {'*'};
    private static final byte[] FIELD = {'v'};
    private static final int COUNT = 1000;
    private static final int PIPELINE = 100;
    private Pipe pipe;
    private int held;

    /** A connection that one thread writes to while another one reads. */
    private static final class Pipe extends Connection {
        Pipe(String host, int port) {
            super(new HostAndPort(host, port));
            connect();
            setTimeoutInfinite();
        }

        void write() {
            flush();
        }

        Object read() {
            return readProtocolWithCheckingBroken();
        }
    }

    public static void main(String[] arguments) throws Exception {
        new RedisLoad().run(arguments);
    }

    @Override
    void open() {
        pipe = new Pipe(host, port);
        Thread reader = new Thread(() -> {
            try {
                for (;;) {
                    pipe.read();
                    confirmed(1);
                }
            } catch (RuntimeException error) {
                failed(error);
            }
        });
        reader.setDaemon(true);
        reader.start();
    }

    @Override
    void send(byte[] value) {
        pipe.sendCommand(Protocol.Command.XADD, STREAM, ANY_ID, FIELD, value);
        if (++held >= (batch > 0 ? batch : PIPELINE))
            push();
    }

    @Override
    void push() {
        if (held > 0)
            pipe.write();
        held = 0;
    }

    @Override
    @SuppressWarnings("unchecked")
    void receive(long count, boolean fromNow, Sink sink) {
        try (Jedis reader = new Jedis(host, port, 60_000)) {
            byte[] last = fromNow ? new byte[] {'$'} : new byte[] {'0'};
            for (long seen = 0; seen < count;) {
                Object found = reader.sendCommand(Protocol.Command.XREAD, bytes("COUNT"), bytes("" + COUNT),
                        bytes("BLOCK"), bytes("30000"), bytes("STREAMS"), STREAM, last);
                List<Object> entries = (List<Object>) ((List<Object>) ((List<Object>) found).get(0)).get(1);
                for (Object entry : entries) {
                    List<Object> parts = (List<Object>) entry;
                    last = (byte[]) parts.get(0);
                    sink.take((byte[]) ((List<Object>) parts.get(1)).get(1));
                    if (++seen >= count)
                        return;
                }
            }
        }
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }
}
