import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.common.config.ConfigException;

/**
 * Says of each line `name TAB value` whether Apache Kafka's table of broker settings takes it: true or false; `unbounded`
 * if it does and has no bounds for the setting; `unknown` if it does not have the setting.
 */
public class Settings {
    public static void main(String[] arguments) throws Exception {
        ConfigDef table = (ConfigDef) Class.forName("kafka.server.KafkaConfig").getMethod("configDef").invoke(null);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split("\t", 2);
            ConfigDef.ConfigKey key = table.configKeys().get(words[0]);
            System.out.println(key == null ? "unknown" : answer(key, words[1]));
        }
    }

    private static String answer(ConfigDef.ConfigKey key, String value) {
        boolean taken = takes(key, value);
        return taken && key.validator == null ? "unbounded" : String.valueOf(taken);
    }

    private static boolean takes(ConfigDef.ConfigKey key, String value) {
        try {
            Object parsed = ConfigDef.parseType(key.name, value, key.type);
            if (key.validator != null) {
                key.validator.ensureValid(key.name, parsed);
            }
            return true;
        } catch (ConfigException error) {
            return false;
        }
    }
}
