package cli_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/streaming/pkg/httpstream/wsstream"

	"github.com/beeline-lb/beeline/pkg/inspect/cli"
)

// connectionLost stands for an exit code that nobody is told.
const connectionLost = -1

// program is what runs in a pod in place of beeline. It returns the exit code.
type program func(r *http.Request, args []string, in io.Reader, out, errs io.Writer) int

// apiServer has pods, and runs programs in them by WebSocket. How real ones do that is tested in
// tests/cluster.
type apiServer struct {
	t          *testing.T
	kubeconfig string
	noExec     atomic.Bool // it is forbidden
	noSocket   bool        // WebSocket is forbidden, and SPDY never answered
	forbidden  string      // a resource that may not be listed

	mu       sync.Mutex            // of what requests read, which may come from a process
	pods     map[string]corev1.Pod // by namespace/name
	programs map[string]program    // likewise
	services []corev1.Service
	nodes    []corev1.Node
	sets     []appsv1.DaemonSet
	runs     [][]string // command lines
}

func newAPIServer(t *testing.T) *apiServer {
	s := &apiServer{t: t, pods: make(map[string]corev1.Pod), programs: make(map[string]program)}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /api/v1/namespaces/{namespace}/pods", s.list)
	mux.HandleFunc("GET /api/v1/namespaces/{namespace}/services", s.listServices)
	mux.HandleFunc("GET /api/v1/namespaces/{namespace}/services/{name}", s.unlessForbidden("services", s.getService))
	mux.HandleFunc("GET /api/v1/nodes", s.unlessForbidden("nodes", s.listNodes))
	mux.HandleFunc("GET /apis/apps/v1/namespaces/kube-system/daemonsets", s.unlessForbidden("daemonsets", s.listDaemonSets))
	mux.HandleFunc("GET /api/v1/namespaces/{namespace}/pods/{name}", s.get)
	mux.HandleFunc("GET /api/v1/namespaces/{namespace}/pods/{name}/exec", s.exec)
	mux.HandleFunc("POST /api/v1/namespaces/{namespace}/pods/{name}/exec", func(w http.ResponseWriter, r *http.Request) {
		if s.noExec.Load() {
			fail(t, w, http.StatusForbidden, metav1.StatusReasonForbidden, "pods/exec is forbidden")
			return
		}
		<-r.Context().Done()
	})
	server := httptest.NewServer(mux)
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	s.kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf(`{"current-context": "test",
		"contexts": [{"name": "test", "context": {"cluster": "test", "namespace": "shop"}}],
		"clusters": [{"name": "test", "cluster": {"server": %q}}]}`, server.URL)
	check(t, os.WriteFile(s.kubeconfig, []byte(text), 0o600))
	return s
}

// agentLabels are those of the chart's pods.
var agentLabels = map[string]string{"app.kubernetes.io/name": "beeline", "app.kubernetes.io/part-of": "beeline"}

// agent adds the pod of an agent, as the chart makes it, that runs a program.
func (s *apiServer) agent(node string, run program, args ...string) {
	pod := corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "beeline-" + node, Labels: agentLabels},
		Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "agent", Args: args}}},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning},
	}
	s.add(pod, run)
}

func (s *apiServer) add(pod corev1.Pod, run program) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pods[pod.Namespace+"/"+pod.Name], s.programs[pod.Namespace+"/"+pod.Name] = pod, run
}

// run runs kubectl beeline.
func (s *apiServer) run(args ...string) (out, errs string, code int) {
	var stdout, stderr bytes.Buffer
	code = cli.RunPlugin(s.t.Context(), fixtureEnv(&stdout, &stderr), append([]string{"--kubeconfig=" + s.kubeconfig}, args...)...)
	return stdout.String(), stderr.String(), code
}

func (s *apiServer) list(w http.ResponseWriter, r *http.Request) {
	byLabel, err := labels.Parse(r.FormValue("labelSelector"))
	check(s.t, err)
	byField, err := fields.ParseSelector(r.FormValue("fieldSelector"))
	check(s.t, err)
	s.mu.Lock()
	defer s.mu.Unlock()
	list := corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}}
	for _, name := range slices.Sorted(maps.Keys(s.pods)) {
		pod := s.pods[name]
		if pod.Namespace == r.PathValue("namespace") && byLabel.Matches(labels.Set(pod.Labels)) &&
			byField.Matches(fields.Set{"spec.nodeName": pod.Spec.NodeName}) {
			list.Items = append(list.Items, pod)
		}
	}
	respond(s.t, w, http.StatusOK, list)
}

func (s *apiServer) listServices(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := corev1.ServiceList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ServiceList"}}
	for _, service := range s.services {
		if service.Namespace == r.PathValue("namespace") {
			list.Items = append(list.Items, service)
		}
	}
	respond(s.t, w, http.StatusOK, list)
}

func (s *apiServer) getService(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, service := range s.services {
		if service.Namespace == r.PathValue("namespace") && service.Name == r.PathValue("name") {
			service.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}
			respond(s.t, w, http.StatusOK, service)
			return
		}
	}
	fail(s.t, w, http.StatusNotFound, metav1.StatusReasonNotFound, "services not found")
}

// listNodes has one node on each page, or the one that is asked for.
func (s *apiServer) listNodes(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := corev1.NodeList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "NodeList"}}
	if name, ok := strings.CutPrefix(r.FormValue("fieldSelector"), "metadata.name="); ok {
		list.Items = slices.DeleteFunc(slices.Clone(s.nodes), func(n corev1.Node) bool { return n.Name != name })
		respond(s.t, w, http.StatusOK, list)
		return
	}
	at, _ := strconv.Atoi(r.FormValue("continue")) // the first page has none
	list.Items = s.nodes[min(at, len(s.nodes)):min(at+1, len(s.nodes))]
	if at+1 < len(s.nodes) {
		list.Continue = strconv.Itoa(at + 1)
	}
	respond(s.t, w, http.StatusOK, list)
}

func (s *apiServer) listDaemonSets(w http.ResponseWriter, _ *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	respond(s.t, w, http.StatusOK, appsv1.DaemonSetList{TypeMeta: metav1.TypeMeta{APIVersion: "apps/v1", Kind: "DaemonSetList"}, Items: s.sets})
}

// unlessForbidden answers as an API server does where RBAC gives no right to list a resource, else by
// a handler.
func (s *apiServer) unlessForbidden(resource string, list http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if s.forbidden == resource {
			fail(s.t, w, http.StatusForbidden, metav1.StatusReasonForbidden, resource+` is forbidden: User "eve" cannot list resource "`+resource+`"`)
			return
		}
		list(w, r)
	}
}

func (s *apiServer) get(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	pod, ok := s.pods[r.PathValue("namespace")+"/"+r.PathValue("name")]
	if !ok {
		fail(s.t, w, http.StatusNotFound, metav1.StatusReasonNotFound, "pods not found")
		return
	}
	pod.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
	respond(s.t, w, http.StatusOK, pod)
}

func fail(t *testing.T, w http.ResponseWriter, code int32, reason metav1.StatusReason, message string) {
	respond(t, w, int(code), metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure,
		Reason: reason, Code: code, Message: message,
	})
}

func respond(t *testing.T, w http.ResponseWriter, code int, object any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	check(t, json.NewEncoder(w).Encode(object))
}

// exec runs a program with the channels of v5.channel.k8s.io: in is 0, out 1, errors 2, the status 3.
// It does not end the program when the client leaves, as a container runtime does not.
func (s *apiServer) exec(w http.ResponseWriter, r *http.Request) {
	if s.noSocket || s.noExec.Load() {
		w.WriteHeader(http.StatusForbidden)
		return
	}
	check(s.t, r.ParseForm())
	command := r.Form["command"]
	s.mu.Lock()
	s.runs = append(s.runs, command)
	run := s.programs[r.PathValue("namespace")+"/"+r.PathValue("name")]
	s.mu.Unlock()
	if r.Form.Get("container") != "agent" || command[0] != "beeline" {
		s.t.Errorf("container %q runs %q", r.Form.Get("container"), command)
	}
	in := wsstream.IgnoreChannel
	if r.Form.Get("stdin") == "true" {
		in = wsstream.ReadChannel
	}
	channels := []wsstream.ChannelType{in, wsstream.WriteChannel, wsstream.WriteChannel, wsstream.WriteChannel}
	conn := wsstream.NewConn(map[string]wsstream.ChannelProtocolConfig{"v5.channel.k8s.io": {Binary: true, Channels: channels}})
	_, streams, err := conn.Open(w, r)
	check(s.t, err)
	defer conn.Close()
	code := run(r, command[1:], streams[0], messages{streams[1]}, messages{streams[2]})
	if code == connectionLost {
		return
	}
	status := metav1.Status{Status: metav1.StatusSuccess}
	if code != 0 {
		status = metav1.Status{Status: metav1.StatusFailure, Reason: "NonZeroExitCode", Details: &metav1.StatusDetails{
			Causes: []metav1.StatusCause{{Type: "ExitCode", Message: fmt.Sprint(code)}},
		}}
	}
	_ = json.NewEncoder(streams[3]).Encode(status) // the client may have left
}

// beeline runs the command itself.
func beeline(r *http.Request, args []string, in io.Reader, out, errs io.Writer) int {
	env := fixtureEnv(out, errs)
	env.In = in
	return cli.Run(r.Context(), env, args...)
}

// prints returns a program that prints a text.
func prints(text string, code int) program {
	return func(_ *http.Request, _ []string, _ io.Reader, out, errs io.Writer) int {
		if code == cli.ExitNoDatapath || code == cli.ExitUsage {
			out = errs
		}
		_, _ = io.WriteString(out, text) // the client may have left
		return code
	}
}

// hangs never ends by itself.
func hangs(r *http.Request, _ []string, _ io.Reader, _, _ io.Writer) int {
	<-r.Context().Done()
	return 0
}

// messages writes in messages of a size that the protocol takes.
type messages struct{ to io.Writer }

// Write writes p, or fails as the client has left.
func (m messages) Write(p []byte) (n int, err error) {
	for message := range slices.Chunk(p, 16<<10) {
		sent, err := m.to.Write(message)
		if n += sent; err != nil {
			return n, err
		}
	}
	return n, nil
}

// command returns the last command line that was run, as one string.
func (s *apiServer) command() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.runs[len(s.runs)-1], " ")
}
