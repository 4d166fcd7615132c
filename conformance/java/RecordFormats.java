import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.util.HexFormat;
import org.apache.kafka.common.protocol.ApiMessage;
import org.apache.kafka.common.protocol.MessageUtil;

/**
 * Encode records of internal topics by Kafka's generated classes, from lines of JSON on standard input: `topic`
 * (__consumer_offsets or __transaction_state), `type`, `version`, and the fields of `key` and `value`. The answer is a
 * line with the key and the value in hexadecimal digits, or one that begins with "error".
 */
public class RecordFormats {
    static final ObjectMapper JSON = new ObjectMapper();

    static ApiMessage key(JsonNode record, short type) {
        return record.get("topic").asText().equals("__consumer_offsets")
            ? org.apache.kafka.coordinator.group.generated.CoordinatorRecordJsonConverters.readRecordKeyFromJson(
                record.get("key"), type)
            : org.apache.kafka.coordinator.transaction.generated.CoordinatorRecordJsonConverters.readRecordKeyFromJson(
                record.get("key"), type);
    }

    static ApiMessage value(JsonNode record, short type, short version) {
        return record.get("topic").asText().equals("__consumer_offsets")
            ? org.apache.kafka.coordinator.group.generated.CoordinatorRecordJsonConverters.readRecordValueFromJson(
                record.get("value"), type, version)
            : org.apache.kafka.coordinator.transaction.generated.CoordinatorRecordJsonConverters.readRecordValueFromJson(
                record.get("value"), type, version);
    }

    /** A key has its type in the place of a version. */
    static String hex(ApiMessage message, short version, short prefix) {
        byte[] bytes = MessageUtil.toVersionPrefixedBytes(version, message);
        ByteBuffer.wrap(bytes).putShort(prefix);
        return HexFormat.of().formatHex(bytes);
    }

    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            try {
                JsonNode record = JSON.readTree(line);
                short type = record.get("type").shortValue();
                short version = record.get("version").shortValue();
                System.out.println(hex(key(record, type), (short) 0, type) + " "
                    + hex(value(record, type, version), version, version));
            } catch (Exception error) {
                System.out.println("error " + error.toString().replace('\n', ' '));
            }
        }
    }
}
