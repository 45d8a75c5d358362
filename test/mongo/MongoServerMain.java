import de.bwaldvogel.mongo.MongoServer;
import de.bwaldvogel.mongo.backend.AbstractMongoBackend;
import de.bwaldvogel.mongo.backend.h2.H2Backend;
import de.bwaldvogel.mongo.backend.memory.MemoryBackend;
import de.bwaldvogel.mongo.bson.Document;
import de.bwaldvogel.mongo.exception.MongoServerError;
import io.netty.channel.Channel;
import java.io.FileInputStream;
import java.net.InetSocketAddress;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.KeyFactory;
import java.security.PrivateKey;
import java.security.cert.CertificateFactory;
import java.security.cert.X509Certificate;
import java.security.spec.PKCS8EncodedKeySpec;
import java.util.Base64;

/**
 * Stands in for MongoDB in tests: speaks its wire protocol. MongoServerMain HOST PORT IDLE_SECONDS [FILE].
 *
 * Port 0 takes a free one; the line "listening on HOST:PORT" says which. Ends by itself when nobody asked
 * anything for IDLE_SECONDS (0: never). Without a file all is in memory.
 * MONGO_ROOT=USER:PASSWORD: users, roles and SCRAM-SHA-256 (Access), and this first user with the role root; kept in
 * FILE.users.
 * MONGO_TLS=FOLDER: TLS with the folder's server.crt and server.key (PKCS #8), both PEM.
 * MONGO_MAY_END=COMMAND: asked before it ends by itself; 1: not yet.
 * No sessions, no replication, no journal: write concerns and read concerns are taken and mean nothing.
 */
public class MongoServerMain {
    static volatile long asked = System.nanoTime();
    static Access access; // null: no users

    /**
     * Sends find's and getMore's answers in batches that fit a message: unlike MongoDB, the library sends
     * all documents in one, and drivers refuse messages over 48 MB.
     */
    static void bound(String command, Document query) {
        asked = System.nanoTime();
        if ((command.equals("find") || command.equals("getMore")) && !query.containsKey("batchSize")) {
            query.put("batchSize", 40);
        }
    }

    interface Backend {
        Document run(String command, Document q);
    }

    /** The library's findAndModify answers with the stored document itself, which the next one changes. */
    static final Object oneAtATime = new Object();

    static Document carryOut(Backend b, String command, Document q) {
        if (command.equalsIgnoreCase("findAndModify")) {
            synchronized (oneAtATime) {
                return b.run(command, q).cloneDeeply();
            }
        }
        return b.run(command.equals("hello") ? "isMaster" : command, q);
    }

    static Document handle(Backend b, Channel c, String db, String command, Document q) {
        bound(command, q);
        if (access == null) {
            return carryOut(b, command, q);
        }
        Document answer;
        try {
            answer = access.ask(c, db, command, q);
        } catch (MongoServerError e) {
            throw e;
        } catch (Exception e) {
            throw new MongoServerError(1, "InternalError", String.valueOf(e));
        }
        if (answer == null) {
            answer = carryOut(b, command, q);
            if (command.equalsIgnoreCase("hello") || command.equalsIgnoreCase("isMaster")) {
                access.tell(q, answer);
            }
        }
        return answer;
    }

    static class Memory extends MemoryBackend {
        @Override
        public Document handleCommand(Channel c, String db, String command, Document q) {
            return handle((name, query) -> super.handleCommand(c, db, name, query), c, db, command, q);
        }
    }

    static class File extends H2Backend {
        File(String name) {
            super(name);
        }

        @Override
        public Document handleCommand(Channel c, String db, String command, Document q) {
            return handle((name, query) -> super.handleCommand(c, db, name, query), c, db, command, q);
        }
    }

    static void enableTls(MongoServer server, Path folder) throws Exception {
        String key = Files.readString(folder.resolve("server.key")).replaceAll("-----[A-Z ]+-----", "").replaceAll("\\s", "");
        PKCS8EncodedKeySpec spec = new PKCS8EncodedKeySpec(Base64.getDecoder().decode(key));
        PrivateKey made = KeyFactory.getInstance("RSA").generatePrivate(spec);
        try (FileInputStream in = new FileInputStream(folder.resolve("server.crt").toFile())) {
            X509Certificate certificate = (X509Certificate) CertificateFactory.getInstance("X.509").generateCertificate(in);
            server.enableSsl(made, null, certificate);
        }
    }

    static boolean mayEnd() throws Exception {
        String command = System.getenv("MONGO_MAY_END");
        return command == null || new ProcessBuilder("sh", "-c", command).start().waitFor() != 1;
    }

    public static void main(String[] a) throws Exception {
        long idle = Long.parseLong(a[2]);
        String root = System.getenv("MONGO_ROOT"), tls = System.getenv("MONGO_TLS");
        if (root != null && !root.isEmpty()) {
            access = new Access(root.substring(0, root.indexOf(':')), root.substring(root.indexOf(':') + 1),
                a.length > 3 ? Path.of(a[3] + ".users") : null);
        }
        AbstractMongoBackend backend = a.length > 3 ? new File(a[3]) : new Memory();
        MongoServer server = new MongoServer(backend);
        if (tls != null && !tls.isEmpty()) {
            enableTls(server, Path.of(tls));
        }
        Runtime.getRuntime().addShutdownHook(new Thread(server::shutdownNow));
        server.bind(new InetSocketAddress(a[0], Integer.parseInt(a[1])));
        System.out.println("listening on " + a[0] + ":" + server.getLocalAddress().getPort());
        while (idle == 0 || System.nanoTime() - asked < idle * 1_000_000_000L || !mayEnd()) {
            Thread.sleep(1000);
        }
        System.exit(0);
    }
}
