import java.nio.charset.StandardCharsets;
import java.util.List;
import redis.clients.jedis.Connection;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.Protocol;

/** XADD in pipelines of DEPTH, XREAD with COUNT; Jedis. */
public final class RedisLoad extends Load {
    private static final byte[] STREAM = NAME.getBytes(StandardCharsets.UTF_8);
    private static final byte[] ANY_ID = {'*'};
    private static final byte[] FIELD = {'v'};
    private static final int COUNT = 1000;
    private static final int DEPTH = 100;
    private Jedis jedis;
    private Connection connection;
    private int waiting;

    public static void main(String[] arguments) throws Exception {
        new RedisLoad().run(arguments);
    }

    @Override
    void open() {
        jedis = new Jedis(host, port, 60_000);
        connection = jedis.getConnection();
    }

    @Override
    void send(byte[] value) {
        connection.sendCommand(Protocol.Command.XADD, STREAM, ANY_ID, FIELD, value);
        if (++waiting >= DEPTH)
            push();
    }

    @Override
    void push() {
        if (waiting == 0)
            return;
        connection.getMany(waiting);
        confirmed(waiting);
        waiting = 0;
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
