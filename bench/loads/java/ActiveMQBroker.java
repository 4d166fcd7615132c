import java.io.File;
import org.apache.activemq.broker.BrokerService;
import org.apache.activemq.store.kahadb.KahaDBPersistenceAdapter;
import org.apache.activemq.store.kahadb.disk.journal.Journal;

/** ActiveMQ as one process: ActiveMQBroker PORT DIRECTORY. KahaDB syncs its journal once a second. */
public final class ActiveMQBroker {
    public static void main(String[] arguments) throws Exception {
        KahaDBPersistenceAdapter store = new KahaDBPersistenceAdapter();
        store.setDirectory(new File(arguments[1]));
        store.setJournalDiskSyncStrategy(Journal.JournalDiskSyncStrategy.PERIODIC.name());
        BrokerService broker = new BrokerService();
        broker.setPersistenceAdapter(store);
        broker.setUseJmx(false);
        broker.setDataDirectory(arguments[1]);
        broker.getSystemUsage().getStoreUsage().setLimit(64L << 30);
        broker.addConnector("tcp://127.0.0.1:" + arguments[0]);
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            try {
                broker.stop();
            } catch (Exception error) {
                error.printStackTrace();
            }
        }));
        broker.setUseShutdownHook(false);
        broker.start();
        broker.waitUntilStopped();
    }
}
