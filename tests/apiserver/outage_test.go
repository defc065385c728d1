package apiserver

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path"
	"strings"
	"sync"
	"testing"

	"k8s.io/client-go/rest"
)

func testServerKilled(t *testing.T, c *cluster) {
	sink := c.follow(t, c.server.Config, "node-a")
	svc := c.createService(t, c.service("web"))
	slice := c.createSlice(t, c.slice("web-a", "web", ready("10.1.0.1")))
	sink.await(t, "the Service and its slice", func() bool {
		return sink.services[c.name("web")] != nil && sink.slices[c.name("web-a")] != nil
	})
	before := sink.totalDeletes()

	c.server.Kill()
	late := c.run(t, c.server.Config, "node-a")
	c.server.Restart(t)
	svc.Spec.Ports[0].Port = 81
	c.updateService(t, svc)
	slice.Endpoints = append(slice.Endpoints, ready("10.1.0.2"))
	c.updateSlice(t, slice)
	sink.await(t, "changes after the restart", func() bool {
		return sink.services[c.name("web")].Ports[0].Port == 81 && len(sink.slices[c.name("web-a")].Endpoints) == 2
	})
	if got := sink.totalDeletes(); got != before {
		t.Errorf("%d objects deleted because the server went away", got-before)
	}
	if puts, _ := sink.counts(c.name("web")); puts != 2 {
		t.Errorf("the Service was put %d times, want twice", puts)
	}
	late.await(t, "a source started without a server to be synced", func() bool {
		return late.atSync[c.name("web")] != nil && late.slices[c.name("web-a")] != nil
	})
}

// testWatchExpired restarts the server with a history that begins after what the
// source saw last. One Service is deleted meanwhile, which no watch will tell.
func testWatchExpired(t *testing.T, c *cluster) {
	wire := newWire()
	config := rest.CopyConfig(c.server.Config)
	config.WrapTransport = wire.wrap
	c.createService(t, c.service("doomed"))
	sink := c.follow(t, config, "node-a")
	// A reflector takes up again only watches that have told it something.
	kept := c.createService(t, c.service("kept"))
	c.createSlice(t, c.slice("kept-a", "kept", ready("10.1.0.1")))
	sink.await(t, "events of both watches", func() bool {
		return sink.services[c.name("kept")] != nil && sink.slices[c.name("kept-a")] != nil
	})
	lists, _ := wire.counts()
	before := sink.totalDeletes()

	c.server.Kill()
	etcd := etcd(c.server.EtcdURL)
	etcd.delete(t, "/registry/services/specs/"+c.namespace+"/doomed")
	etcd.forget(t)
	c.server.Restart(t)

	sink.await(t, "the deletion that no watch told", func() bool { return sink.services[c.name("doomed")] == nil })
	kept.Spec.Ports[0].Port = 81
	c.updateService(t, kept)
	sink.await(t, "a change after the new list", func() bool {
		return sink.services[c.name("kept")].Ports[0].Port == 81
	})

	after, expired := wire.counts()
	if after["services"] <= lists["services"] {
		t.Errorf("the Services were listed %d times before and %d times after, want a new list", lists["services"], after["services"])
	}
	if expired == 0 {
		t.Error("the server never said that a watch had expired, so this test proves nothing")
	}
	if got := sink.totalDeletes(); got != before+1 {
		t.Errorf("%d objects deleted, want the one", got-before)
	}
	if puts, _ := sink.counts(c.name("kept-a")); puts != 1 {
		t.Errorf("the unchanged slice was put %d times, want once", puts)
	}
}

// wire sees the requests of a source.
type wire struct {
	mu           sync.Mutex
	lists        map[string]int // by resource
	expired      int            // answers that a resource version is gone
	contentTypes map[string]bool
	userAgents   map[string]bool
}

func newWire() *wire {
	return &wire{
		lists:        make(map[string]int),
		contentTypes: make(map[string]bool),
		userAgents:   make(map[string]bool),
	}
}

func (w *wire) counts() (lists map[string]int, expired int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	lists = make(map[string]int)
	for k, v := range w.lists {
		lists[k] = v
	}
	return lists, w.expired
}

func (w *wire) expectProtobuf(t *testing.T) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	for got := range w.contentTypes {
		if !strings.HasPrefix(got, "application/vnd.kubernetes.protobuf") {
			t.Errorf("the server answered in %s, want protobuf", got)
		}
	}
	for got := range w.userAgents {
		if !strings.HasPrefix(got, "beeline-agent/") {
			t.Errorf("the user agent is %q", got)
		}
	}
	if len(w.contentTypes) == 0 {
		t.Error("no answer was seen")
	}
}

func (w *wire) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(req *http.Request) (*http.Response, error) {
		resp, err := next.RoundTrip(req)
		if err == nil {
			w.see(req, resp)
		}
		return resp, err
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

func (w *wire) see(req *http.Request, resp *http.Response) {
	w.mu.Lock()
	defer w.mu.Unlock()
	query := req.URL.Query()
	if query.Get("watch") != "true" || query.Get("sendInitialEvents") == "true" {
		w.lists[path.Base(req.URL.Path)]++
	}
	w.contentTypes[resp.Header.Get("Content-Type")] = true
	w.userAgents[req.Header.Get("User-Agent")] = true
	resp.Body = &expiryScanner{ReadCloser: resp.Body, wire: w}
}

// expiryScanner counts the API server's messages of an expired watch, which come
// as an event inside a successful answer.
type expiryScanner struct {
	io.ReadCloser
	wire *wire
}

func (s *expiryScanner) Read(p []byte) (int, error) {
	n, err := s.ReadCloser.Read(p)
	if bytes.Contains(p[:n], []byte("too old resource version")) {
		s.wire.mu.Lock()
		s.wire.expired++
		s.wire.mu.Unlock()
	}
	return n, err
}

// etcd is the address of an etcd, spoken to through its JSON gateway.
type etcd string

func (e etcd) delete(t *testing.T, key string) {
	t.Helper()
	var answer struct{ Deleted string }
	e.call(t, "kv/deleterange", map[string]any{"key": encode(key)}, &answer)
	if answer.Deleted != "1" {
		t.Fatalf("etcd deleted %q keys at %s, want 1", answer.Deleted, key)
	}
}

// forget moves the revision on by writes of no concern to the API server and
// drops the history before them.
func (e etcd) forget(t *testing.T) {
	t.Helper()
	var answer struct {
		Header struct{ Revision string }
	}
	for i := range 10 {
		e.call(t, "kv/put", map[string]any{"key": encode("/beeline-test"), "value": encode(fmt.Sprint(i))}, &answer)
	}
	e.call(t, "kv/compaction", map[string]any{"revision": answer.Header.Revision, "physical": true}, &answer)
}

func (e etcd) call(t *testing.T, method string, request, answer any) {
	t.Helper()
	body, err := json.Marshal(request)
	must(t, err)
	resp, err := http.Post(string(e)+"/v3/"+method, "application/json", bytes.NewReader(body))
	must(t, err)
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		msg, _ := io.ReadAll(resp.Body)
		t.Fatalf("etcd %s: %s: %s", method, resp.Status, msg)
	}
	must(t, json.NewDecoder(resp.Body).Decode(answer))
}

func encode(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }
