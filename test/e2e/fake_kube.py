"""An API server of Kubernetes for programs that run here: Leases with versions, pods that never start, and the proxy
of a Service "kubeml" whose pod is at `backend`, which like the real one keeps Authorization for itself.

With `places`, a role's (node, address) for one pod after the other, pods run there as soon as they are made, as far as
the API server knows; `port` is theirs.

It can be told to go away for a while (`away`), and with `tls` asks for a client's certificate. With `crds` it has the
custom resources, with the Functions in `functions`, of which it takes no change, and no other object but, where `trainjobs` is
a dictionary, the TrainJobs that are made. Anything else is not there (404).
"""
import base64
import contextlib
import http.client
import http.server
import json
import ssl
import subprocess
import threading
import urllib.parse

PROXY = "/api/v1/namespaces/ml/services/kubeml:api/proxy"
TRAINJOBS = "/apis/kubeml.dev/v1alpha1/namespaces/ml/trainjobs"
TOKEN = "of-the-api-server"


class FakeKube:
    def __init__(self, folder, tls=False, port=None):
        self.lock = threading.RLock()
        self.backend, self.secret, self.services = None, None, ["kubeml"]
        self.forbidden = ()  # parts of paths
        self.lost = []  # (handed on, message) of the 503s that the proxy's next POSTs get in place of the answer
        self.leases, self.version, self.away, self.crds = {}, 1, False, False
        self.functions = []  # as one that begins to look finds them
        self.trainjobs, self.told_of = None, []  # by name; events
        self.uid = None  # of the namespace
        self.asked = []  # (method, path), of every request that was let in
        self.places, self.made, self.deleted = None, {}, {}  # pods by name; name: query
        self.events, self.told = [], threading.Condition()  # of pods
        self.ended = threading.Event()
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def pass_on(self):
                """Both ways as it comes, in pieces."""
                lost = outer.lost.pop(0) if self.command == "POST" and outer.lost else None
                if lost and not lost[0]:
                    self.rfile.read(int(self.headers.get("Content-Length") or 0))
                    return self.answer_json(503, {"kind": "Status", "code": 503, "message": lost[1]})
                to = urllib.parse.urlparse(outer.backend)
                there = http.client.HTTPConnection(to.hostname, to.port, timeout=60)
                headers = {k: v for k, v in self.headers.items() if k.lower() not in ("authorization", "host")}
                there.putrequest(self.command, self.path[len(PROXY):], skip_accept_encoding=True)
                for key, value in headers.items():
                    there.putheader(key, value)
                there.endheaders()
                left = int(self.headers.get("Content-Length") or 0)
                while left:
                    piece = self.rfile.read(min(left, 1 << 16))
                    left -= len(piece)
                    there.send(piece)
                answer = there.getresponse()
                if lost:
                    answer.read()
                    return self.answer_json(503, {"kind": "Status", "code": 503, "message": lost[1]})
                self.send_response(answer.status)
                for key, value in answer.getheaders():
                    if key.lower() not in ("transfer-encoding", "connection"):
                        self.send_header(key, value)
                self.send_header("Connection", "close")
                self.end_headers()
                self.close_connection = True
                while piece := answer.read1(1 << 16):
                    self.wfile.write(piece)
                    self.wfile.flush()

            def tell_events(self, events):
                told = 0
                while not outer.ended.is_set():
                    with outer.told:
                        outer.told.wait_for(lambda: outer.ended.is_set() or len(events) > told)
                        news = events[told:]
                    for event in news:
                        self.wfile.write(json.dumps(event).encode() + b"\n")
                    self.wfile.flush()
                    told += len(news)

            def handle_any(self):
                known = tls or self.headers.get("Authorization") == "Bearer " + TOKEN
                if known and outer.backend and self.path.startswith(PROXY + "/"):
                    return self.pass_on()
                length = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(length)) if length else None
                status, answer = outer.answer(self.command, self.path, body) if known else outer.status(401, "Unauthorized")
                if status == "watch":
                    self.close_connection = True
                    self.send_response(200)
                    self.end_headers()
                    return self.tell_events(answer)
                self.answer_json(status, answer)

            def answer_json(self, status, answer):
                text = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_any

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True

        self.server = Server(("127.0.0.1", 0), Handler)
        cluster, user = f'server: "http://127.0.0.1:{self.server.server_port}"', f"token: {TOKEN}"
        if tls:
            cluster, user = self.use_tls(folder)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.config, self.pods = folder / "kubeconfig", folder / "pods.json"
        self.config.write_text(f"""
apiVersion: v1
kind: Config
current-context: other
clusters: [{{name: test, cluster: {{{cluster}}}}}]
contexts: [{{name: test, context: {{cluster: test, user: test, namespace: ml}}}},
           {{name: other, context: {{cluster: test, user: other, namespace: elsewhere}}}}]
users: [{{name: test, user: {{{user}}}}}, {{name: other, user: {{token: wrong}}}}]
""")
        template = {"spec": {"containers": [{"name": "program", "image": "none"}]}}
        self.pods.write_text(json.dumps({"install": "kubeml", "function": template, "ps": template, "slots": 4,
                                         **({"port": port} if port else {})}))

    def use_tls(self, folder):
        """A server's and a client's certificate that one authority signed; nobody else gets in."""
        def openssl(*arguments):
            subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True, cwd=folder)
        key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
        openssl("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.crt", "-subj", "/CN=ca", "-days", "2")
        for name, extra in (("server", "subjectAltName=IP:127.0.0.1"), ("client", "extendedKeyUsage=clientAuth")):
            openssl("req", *key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
            (folder / "ext").write_text(extra)
            openssl("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial",
                    "-days", "2", "-extfile", "ext", "-out", f"{name}.crt")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "server.crt", folder / "server.key")
        context.load_verify_locations(folder / "ca.crt")
        context.verify_mode = ssl.CERT_REQUIRED
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        def data(name):
            return base64.b64encode((folder / name).read_bytes()).decode()
        return (f'server: "https://127.0.0.1:{self.server.server_port}", certificate-authority: ca.crt',
                f"client-certificate-data: {data('client.crt')}, client-key-data: {data('client.key')}")

    @staticmethod
    def status(code, reason):
        return code, {"kind": "Status", "code": code, "reason": reason, "message": reason}

    def answer(self, method, path, body):
        path, _, query = path.partition("?")
        self.asked.append((method, path))
        if self.away:
            return self.status(503, "ServiceUnavailable")
        if path == "/api/v1/namespaces/ml" and self.uid:
            return 200, {"metadata": {"name": "ml", "uid": self.uid}}
        if self.trainjobs is not None and path.startswith(TRAINJOBS):
            with self.lock:
                return self.trainjob(method, path[len(TRAINJOBS):].strip("/"), query, body)
        if path == "/api/v1/namespaces/ml/pods" or (self.crds and path.startswith("/apis/kubeml.dev/v1alpha1/")):
            if method == "GET" and "watch=" in query:
                return "watch", self.events if path.endswith("/pods") else []
            if method == "GET":
                items = self.functions if path.endswith("/functions") else []
                return 200, {"kind": "List", "metadata": {"resourceVersion": "1"}, "items": items}
            if path.endswith("/pods") and self.places:
                return self.make_pod(body)
            return 403, {"kind": "Status", "code": 403, "reason": "Forbidden", "message": "exceeded quota: none"}
        if self.places and path.startswith("/api/v1/namespaces/ml/pods/") and method == "DELETE":
            return self.delete_pod(path.rpartition("/")[2], query)
        if any(part in path for part in self.forbidden):
            return self.status(403, "Forbidden")
        if path == "/api/v1/namespaces/ml/services":
            return 200, {"items": [{"metadata": {"name": n, "annotations": {"kubeml.dev/token-secret": f"{n}-own"}},
                                    "spec": {"ports": [{"name": "api", "port": 10100}]}} for n in self.services]}
        if path == "/api/v1/namespaces/ml/secrets/kubeml-own" and self.secret:
            return 200, {"data": {"token": base64.b64encode(self.secret.encode()).decode()}}
        if path.endswith("/services"):
            return 200, {"items": []}
        folder, _, name = path.partition("/apis/coordination.k8s.io/v1/namespaces/ml/leases")
        if folder:
            return self.status(404, "NotFound")
        with self.lock:
            return self.lease(method, name.strip("/") or (body or {}).get("metadata", {}).get("name"), body)

    def happened(self, kind, what, events=None):
        self.version += 1
        what["metadata"]["resourceVersion"] = str(self.version)
        with self.told:
            (self.events if events is None else events).append(json.loads(json.dumps({"type": kind, "object": what})))
            self.told.notify_all()
        return what

    def trainjob(self, method, name, query, body):
        name, _, part = name.partition("/")
        old = self.trainjobs.get(name)
        if method == "GET" and "watch=" in query:
            # A list has told of what there was; each change is told to all who watch.
            return "watch", self.told_of
        if method == "GET" and not name:
            self.told_of = []
            return 200, {"kind": "List", "metadata": {"resourceVersion": str(self.version)}, "items": list(self.trainjobs.values())}
        if method == "POST":
            name = body["metadata"]["name"]
            body["metadata"] |= {"uid": f"{len(self.told_of):08}-{name}", "generation": 1, "namespace": "ml"}
            self.trainjobs[name] = body
            return 201, self.happened("ADDED", body, self.told_of)
        if not old:
            return self.status(404, "NotFound")
        if method == "DELETE":
            return 200, self.happened("DELETED", self.trainjobs.pop(name), self.told_of)
        if method == "PATCH" and part == "status":
            old["status"] = body["status"]
        elif method == "PATCH":
            old["metadata"].setdefault("labels", {}).update(body.get("metadata", {}).get("labels", {}))
            old["spec"] |= body.get("spec", {})
        return 200, self.happened("MODIFIED", old, self.told_of)

    def make_pod(self, pod):
        name, places = pod["metadata"]["name"], self.places[pod["metadata"]["labels"]["kubeml.dev/role"]]
        with self.lock:
            node, address = places.pop(0) if places else (None, None)
            pod["metadata"]["uid"] = f"uid-of-{name}"
            pod["status"] = {"phase": "Running", "podIP": address} if node else {"phase": "Pending"}
            pod["spec"] |= {"nodeName": node} if node else {}
            self.made[name] = pod
            return 201, self.happened("ADDED", pod)

    def delete_pod(self, name, query):
        with self.lock:
            if name not in self.made or name in self.deleted:
                return self.status(404, "NotFound")
            self.deleted[name] = query
            return 200, self.happened("DELETED", self.made[name])

    def lease(self, method, name, body):
        old = self.leases.get(name)
        if method != "POST" and not old:
            return self.status(404, "NotFound")
        if method == "GET":
            return 200, old
        if method == "POST" and old:
            return self.status(409, "AlreadyExists")
        if method == "PUT" and body["metadata"].get("resourceVersion") != old["metadata"]["resourceVersion"]:
            return self.status(409, "Conflict")
        self.version += 1
        body["metadata"]["resourceVersion"] = str(self.version)
        self.leases[name] = body
        return 201 if method == "POST" else 200, body

    def holder(self, name="kubeml"):
        with self.lock:
            return self.leases.get(name, {}).get("spec", {}).get("holderIdentity")

    def close(self):
        self.ended.set()
        with self.told:
            self.told.notify_all()
        self.server.shutdown()
        self.server.server_close()


@contextlib.contextmanager
def fake_kube(folder, tls=False, port=None):
    kube = FakeKube(folder, tls, port)
    try:
        yield kube
    finally:
        kube.close()
