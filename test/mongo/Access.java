import de.bwaldvogel.mongo.bson.BinData;
import de.bwaldvogel.mongo.bson.Document;
import de.bwaldvogel.mongo.exception.MongoServerError;
import io.netty.channel.Channel;
import io.netty.util.AttributeKey;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.ObjectInputStream;
import java.io.ObjectOutputStream;
import java.io.Serializable;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.security.MessageDigest;
import java.security.SecureRandom;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import javax.crypto.Mac;
import javax.crypto.SecretKeyFactory;
import javax.crypto.spec.PBEKeySpec;
import javax.crypto.spec.SecretKeySpec;

/**
 * Users, roles and SCRAM-SHA-256, which the library of the stand-in does not have: who asks, and may they?
 *
 * MongoDB's own commands with MongoDB's own error codes, as far as KubeML uses them. A user who is
 * dropped is shut out at once, on connections that are there too. The built-in roles are read, readWrite,
 * readWriteAnyDatabase, dbAdminAnyDatabase, userAdminAnyDatabase and root; others are made by createRole.
 * They are kept in a file where there is one; the first user is made where it is not there yet.
 */
class Access {
    static final int ITERATIONS = 4096;
    static final int UNAUTHORIZED = 13, FAILED = 18, NO_USER = 11, NO_ROLE = 31, USER_EXISTS = 51003, ROLE_EXISTS = 51002;
    static final AttributeKey<Exchange> EXCHANGE = AttributeKey.valueOf("exchange");
    static final AttributeKey<User> WHO = AttributeKey.valueOf("who");

    static final Set<String> OPEN = Set.of("hello", "ismaster", "ping", "buildinfo", "saslstart", "saslcontinue", "logout",
        "endsessions", "whatsmyuri");
    static final Set<String> READ = Set.of("find", "listCollections", "listIndexes", "killCursors");
    static final Set<String> WRITE = Set.of("insert", "update", "remove", "createIndex", "createCollection", "dropCollection");
    static final Set<String> ADMINISTER = Set.of("dropDatabase", "createIndex", "createCollection", "dropCollection",
        "listCollections", "listIndexes", "listDatabases");
    static final Set<String> USERS = Set.of("createUser", "dropUser", "viewUser", "createRole", "dropRole");

    /** Actions on a collection of a database; "" stands for any. */
    record Privilege(String db, String collection, Set<String> actions) implements Serializable {
        boolean allows(String on, String what, String action) {
            return (db.isEmpty() || db.equals(on)) && (collection.isEmpty() || collection.equals(what)) && actions.contains(action);
        }
    }

    record Role(String name, String db) implements Serializable {}

    record User(String db, String name, byte[] salt, byte[] stored, byte[] server, ArrayList<Role> roles) implements Serializable {}

    record Exchange(User user, String first, String nonce, boolean skipEmpty, boolean proven) {}

    private final TreeMap<String, User> users = new TreeMap<>();
    private final TreeMap<String, ArrayList<Privilege>> roles = new TreeMap<>();
    private final SecureRandom random = new SecureRandom();
    private final Path file; // null: in memory

    Access(String name, String password, Path file) throws Exception {
        this.file = file;
        if (file != null && Files.exists(file)) {
            load();
        }
        if (!users.containsKey("admin." + name)) {
            add("admin", name, password, new ArrayList<>(List.of(new Role("root", "admin"))));
            save();
        }
    }

    @SuppressWarnings("unchecked")
    private void load() throws Exception {
        try (ObjectInputStream in = new ObjectInputStream(new ByteArrayInputStream(Files.readAllBytes(file)))) {
            users.putAll((TreeMap<String, User>) in.readObject());
            roles.putAll((TreeMap<String, ArrayList<Privilege>>) in.readObject());
        }
    }

    private void save() throws Exception {
        if (file == null) {
            return;
        }
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        try (ObjectOutputStream out = new ObjectOutputStream(bytes)) {
            out.writeObject(users);
            out.writeObject(roles);
        }
        Path fresh = file.resolveSibling(file.getFileName() + ".new");
        Files.write(fresh, bytes.toByteArray());
        Files.move(fresh, file, StandardCopyOption.ATOMIC_MOVE);
    }

    /** Answers what is about users; null: the command may be carried out. */
    synchronized Document ask(Channel channel, String db, String command, Document q) throws Exception {
        switch (command.toLowerCase()) {
        case "saslstart": return start(channel, db, q);
        case "saslcontinue": return proceed(channel, q);
        case "logout": channel.attr(WHO).set(null); return new Document("ok", 1.0);
        default: break;
        }
        if (OPEN.contains(command.toLowerCase())) {
            return null;
        }
        for (String action : actions(command, q)) {
            check(channel, db, collection(command, q), action, command);
        }
        return administer(db, command, q);
    }

    /** What hello tells a driver that asks how this user proves who it is. */
    void tell(Document q, Document reply) {
        if (q.containsKey("saslSupportedMechs")) {
            reply.put("saslSupportedMechs", List.of("SCRAM-SHA-256"));
        }
    }

    // ---- what is allowed ---------------------------------------------------------------------------

    private static List<String> actions(String command, Document q) {
        switch (command.toLowerCase()) {
        case "find": case "getmore": case "count": case "distinct": case "aggregate": return List.of("find");
        case "insert": return List.of("insert");
        case "delete": return List.of("remove");
        case "update": return upserts(q) ? List.of("update", "insert") : List.of("update");
        case "findandmodify": return List.of("find", "update", "insert");
        case "createindexes": return List.of("createIndex");
        case "create": return List.of("createCollection");
        case "drop": return List.of("dropCollection");
        case "usersinfo": return List.of("viewUser");
        case "dropallusersfromdatabase": return List.of("dropUser");
        default: return List.of(command); // dropDatabase, listDatabases, createUser, ...
        }
    }

    private static boolean upserts(Document q) {
        for (Object u : (Iterable<?>) q.getOrDefault("updates", List.of())) {
            if (Boolean.TRUE.equals(((Document) u).get("upsert"))) {
                return true;
            }
        }
        return false;
    }

    private static String collection(String command, Document q) {
        Object named = command.equalsIgnoreCase("getMore") ? q.get("collection") : q.values().iterator().next();
        return named instanceof String ? (String) named : "";
    }

    private void check(Channel channel, String db, String collection, String action, String command) {
        User who = channel.attr(WHO).get();
        if (who == null) {
            throw new MongoServerError(UNAUTHORIZED, "Unauthorized", "command " + command + " requires authentication");
        }
        if (users.get(who.db() + "." + who.name()) == who) {
            for (Role role : who.roles()) {
                for (Privilege p : privileges(role.name(), role.db())) {
                    if (p.allows(db, collection, action)) {
                        return;
                    }
                }
            }
        }
        throw new MongoServerError(UNAUTHORIZED, "Unauthorized", "not authorized on " + db + " to execute command " + command);
    }

    private List<Privilege> privileges(String role, String db) {
        switch (role) {
        case "root":
            return List.of(new Privilege("", "", READ), new Privilege("", "", WRITE), new Privilege("", "", ADMINISTER),
                new Privilege("", "", USERS));
        case "read": return List.of(new Privilege(db, "", READ));
        case "readWrite": return List.of(new Privilege(db, "", READ), new Privilege(db, "", WRITE));
        case "readWriteAnyDatabase": return List.of(new Privilege("", "", READ), new Privilege("", "", WRITE));
        case "dbAdminAnyDatabase": return List.of(new Privilege("", "", ADMINISTER));
        case "userAdminAnyDatabase": return List.of(new Privilege("", "", USERS));
        default: return roles.getOrDefault(db + "." + role, new ArrayList<>());
        }
    }

    // ---- users and roles ---------------------------------------------------------------------------

    private void add(String db, String name, String password, ArrayList<Role> granted) throws Exception {
        byte[] salt = new byte[28];
        random.nextBytes(salt);
        byte[] salted = SecretKeyFactory.getInstance("PBKDF2WithHmacSHA256")
            .generateSecret(new PBEKeySpec(password.toCharArray(), salt, ITERATIONS, 256)).getEncoded();
        users.put(db + "." + name, new User(db, name, salt, sha256(hmac(salted, "Client Key")), hmac(salted, "Server Key"), granted));
    }

    private ArrayList<Role> granted(String db, Document q) {
        ArrayList<Role> out = new ArrayList<>();
        for (Object r : (Iterable<?>) q.get("roles")) {
            Role role = r instanceof Document ? new Role((String) ((Document) r).get("role"), (String) ((Document) r).get("db"))
                : new Role((String) r, db);
            if (privileges(role.name(), role.db()).isEmpty()) {
                throw new MongoServerError(NO_ROLE, "RoleNotFound", "Could not find role: " + role);
            }
            out.add(role);
        }
        return out;
    }

    private Document administer(String db, String command, Document q) throws Exception {
        Document answer = change(db, command, q);
        if (answer != null) {
            save();
        }
        return answer;
    }

    private Document change(String db, String command, Document q) throws Exception {
        String name = collection(command, q), key = db + "." + name;
        switch (command.toLowerCase()) {
        case "createuser":
            if (users.containsKey(key)) {
                throw new MongoServerError(USER_EXISTS, "Location51003", "User \"" + key + "\" already exists");
            }
            add(db, name, (String) q.get("pwd"), granted(db, q));
            return new Document("ok", 1.0);
        case "dropuser":
            if (users.remove(key) == null) {
                throw new MongoServerError(NO_USER, "UserNotFound", "User '" + name + "@" + db + "' not found");
            }
            return new Document("ok", 1.0);
        case "dropallusersfromdatabase":
            int before = users.size();
            users.values().removeIf(u -> u.db().equals(db));
            return new Document("n", before - users.size()).append("ok", 1.0);
        case "usersinfo":
            return new Document("users", usersOf(db, q)).append("ok", 1.0);
        case "createrole":
            if (roles.containsKey(key)) {
                throw new MongoServerError(ROLE_EXISTS, "Location51002", "Role \"" + key + "\" already exists");
            }
            roles.put(key, privilegesIn(q));
            return new Document("ok", 1.0);
        case "droprole":
            if (roles.remove(key) == null) {
                throw new MongoServerError(NO_ROLE, "RoleNotFound", "Role '" + name + "@" + db + "' not found");
            }
            return new Document("ok", 1.0);
        default:
            return null;
        }
    }

    private List<Document> usersOf(String db, Document q) {
        boolean all = q.get("usersInfo") instanceof Document && Boolean.TRUE.equals(((Document) q.get("usersInfo")).get("forAllDBs"));
        List<Document> out = new ArrayList<>();
        for (User u : users.values()) {
            if (all || u.db().equals(db)) {
                out.add(new Document("_id", u.db() + "." + u.name()).append("user", u.name()).append("db", u.db())
                    .append("roles", u.roles().stream().map(r -> new Document("role", r.name()).append("db", r.db())).toList()));
            }
        }
        return out;
    }

    private static ArrayList<Privilege> privilegesIn(Document q) {
        ArrayList<Privilege> out = new ArrayList<>();
        for (Object p : (Iterable<?>) q.get("privileges")) {
            Document on = (Document) ((Document) p).get("resource");
            Set<String> actions = new TreeSet<>();
            for (Object a : (Iterable<?>) ((Document) p).get("actions")) {
                actions.add((String) a);
            }
            out.add(new Privilege((String) on.get("db"), (String) on.get("collection"), actions));
        }
        return out;
    }

    // ---- SCRAM-SHA-256, RFC 7677 -------------------------------------------------------------------

    private static byte[] hmac(byte[] key, String text) throws Exception {
        Mac mac = Mac.getInstance("HmacSHA256");
        mac.init(new SecretKeySpec(key, "HmacSHA256"));
        return mac.doFinal(text.getBytes(StandardCharsets.UTF_8));
    }

    private static byte[] sha256(byte[] bytes) throws Exception {
        return MessageDigest.getInstance("SHA-256").digest(bytes);
    }

    private static MongoServerError failed() {
        return new MongoServerError(FAILED, "AuthenticationFailed", "Authentication failed.");
    }

    private static String payload(Document q) {
        return new String(((BinData) q.get("payload")).getData(), StandardCharsets.UTF_8);
    }

    private static String attribute(String message, String name) {
        for (String part : message.split(",")) {
            if (part.startsWith(name + "=")) {
                return part.substring(name.length() + 1);
            }
        }
        throw failed();
    }

    private static Document reply(String text, boolean done) {
        return new Document("conversationId", 1).append("done", done)
            .append("payload", new BinData(text.getBytes(StandardCharsets.UTF_8))).append("ok", 1.0);
    }

    private Document start(Channel channel, String db, Document q) {
        String first = payload(q);
        if (!"SCRAM-SHA-256".equals(q.get("mechanism")) || !first.startsWith("n,,")) {
            throw failed();
        }
        User user = users.get(db + "." + attribute(first, "n").replace("=2C", ",").replace("=3D", "="));
        if (user == null) {
            throw failed();
        }
        byte[] own = new byte[18];
        random.nextBytes(own);
        String nonce = attribute(first, "r") + Base64.getEncoder().encodeToString(own);
        String answer = "r=" + nonce + ",s=" + Base64.getEncoder().encodeToString(user.salt()) + ",i=" + ITERATIONS;
        Object options = q.get("options");
        boolean skip = options instanceof Document && Boolean.TRUE.equals(((Document) options).get("skipEmptyExchange"));
        channel.attr(EXCHANGE).set(new Exchange(user, first.substring(3) + "," + answer, nonce, skip, false));
        return reply(answer, false);
    }

    private Document proceed(Channel channel, Document q) throws Exception {
        Exchange x = channel.attr(EXCHANGE).getAndSet(null);
        if (x == null) {
            throw failed();
        }
        if (x.proven()) {
            channel.attr(WHO).set(x.user());
            return reply("", true);
        }
        String last = payload(q), proof = attribute(last, "p");
        String all = x.first() + "," + last.substring(0, last.lastIndexOf(",p="));
        byte[] key = Base64.getDecoder().decode(proof), signature = hmac(x.user().stored(), all);
        for (int i = 0; i < key.length && i < signature.length; i++) {
            key[i] ^= signature[i];
        }
        if (!attribute(last, "r").equals(x.nonce()) || !MessageDigest.isEqual(sha256(key), x.user().stored())) {
            throw failed();
        }
        if (x.skipEmpty()) {
            channel.attr(WHO).set(x.user());
        } else {
            channel.attr(EXCHANGE).set(new Exchange(x.user(), "", "", false, true));
        }
        return reply("v=" + Base64.getEncoder().encodeToString(hmac(x.user().server(), all)), x.skipEmpty());
    }
}
