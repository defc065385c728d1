package cli_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/beeline-lb/beeline/pkg/inspect"
	"github.com/beeline-lb/beeline/pkg/inspect/cli"
	webpage "github.com/beeline-lb/beeline/pkg/inspect/web"
	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/tests/tier"
	"github.com/beeline-lb/beeline/tests/wait"
)

// webAnswer is what the tests look at of an answer.
type webAnswer struct {
	Error    string
	Services int
	Sum      inspect.Rates
	Matching int
	Rows     []struct{ Namespace, Name string }
	Chosen   *struct {
		Served    bool
		Ports     []inspect.TopPort
		MorePorts int
	}
	Refusals struct {
		Events  []inspect.Event
		Reasons []struct {
			Reason, Meaning string
			Count           float64
		}
		Ports []struct {
			Service    string
			NoBackends []string
			Count      float64
		}
	}
}

// webHandler serves the page over the maps below bpffs, and counts readings.
func webHandler(t *testing.T, bpffs string, interval time.Duration) (handler http.Handler, readings *atomic.Int32) {
	readings = new(atomic.Int32)
	page := webpage.New(webpage.Options{
		Interval: interval,
		Read: func() (*inspect.Sample, error) {
			readings.Add(1)
			return inspect.Read(bpffs, (*inspect.Datapath).Sample)
		},
		Listen: func(o inspect.EventOptions) (webpage.Listener, error) { return inspect.Listen(bpffs, o) },
	})
	t.Cleanup(page.Close)
	return page, readings
}

// get asks for a path as a browser at 127.0.0.1 does.
func get(handler http.Handler, path string) *httptest.ResponseRecorder { return getWith(handler, path) }

// getWith is get with headers.
func getWith(handler http.Handler, path string, headers ...string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	r := httptest.NewRequest("GET", "http://127.0.0.1:10245"+path, nil)
	for _, header := range headers {
		name, value, _ := strings.Cut(header, ": ")
		r.Header.Set(name, value)
	}
	handler.ServeHTTP(w, r)
	return w
}

// ask asks for a reading.
func ask(t *testing.T, handler http.Handler, query string) (a webAnswer) {
	t.Helper()
	w := get(handler, "/top?"+query)
	if err := json.Unmarshal(w.Body.Bytes(), &a); err != nil || w.Code != http.StatusOK {
		t.Fatalf("%s: status %d, %v: %s", query, w.Code, err, w.Body)
	}
	return a
}

// TestWebAnswers: what is counted, filtered and sorted as asked, and the Service that is chosen.
func TestWebAnswers(t *testing.T) {
	bpffs := newDatapath(t)
	handler, _ := webHandler(t, bpffs, 0)
	if a := ask(t, handler, ""); a.Services != 8 || a.Matching != 8 || len(a.Rows) != 8 || a.Sum.Flows != 6 || a.Chosen != nil {
		t.Errorf("the first answer: %+v", a)
	}
	refuse(t, bpffs, 9)
	var a webAnswer
	wait.Until(t, "a reading after the pause", func() bool {
		a = ask(t, handler, "sort=name&filter=shop&offset=4&service=kube-system/busy")
		return len(a.Refusals.Ports) > 0
	})
	if p := a.Refusals.Ports[0]; p.Service != "empty" || p.Count != 9 || len(p.NoBackends) != 1 {
		t.Errorf("refused of Services: %+v", a.Refusals.Ports)
	}
	if r := a.Refusals.Reasons[0]; len(a.Refusals.Reasons) != 1 || r.Reason != "no_endpoint" || r.Count != 9 || r.Meaning == "" {
		t.Errorf("refused by reason: %+v", a.Refusals.Reasons)
	}
	if a.Matching != 5 || len(a.Rows) != 1 || a.Rows[0].Name != "web" {
		t.Errorf("rows: %+v", a.Rows)
	}
	if c := a.Chosen; c == nil || !c.Served || len(c.Ports) != 1 || len(c.Ports[0].Backends) != 2 || c.Ports[0].Backends[0].Connections != 7 {
		t.Errorf("chosen: %+v", c)
	}
	if c := ask(t, handler, "service=no/such").Chosen; c == nil || c.Served {
		t.Errorf("a Service that is not served: %+v", c)
	}
	for query, want := range map[string]string{
		"sort=size": "sort must be one of", "offset=-1": "offset", "offset=x": "offset", "service=web": "namespace/name",
	} {
		if w := get(handler, "/top?"+query); w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), want) {
			t.Errorf("%s: status %d: %s", query, w.Code, w.Body)
		}
	}
	handler, _ = webHandler(t, t.TempDir(), 0)
	if w := get(handler, "/top"); w.Code != http.StatusServiceUnavailable || !strings.Contains(w.Body.String(), `"error":"no datapath`) {
		t.Errorf("without a datapath: status %d: %s", w.Code, w.Body)
	}
}

// TestWebGuards: the page answers GET alone, at addresses and as localhost, under no name that a
// stranger's DNS may give, and lets a browser load nothing from elsewhere.
func TestWebGuards(t *testing.T) {
	handler, readings := webHandler(t, t.TempDir(), time.Hour)
	for _, c := range []struct {
		method, url string
		want        int
	}{
		{"GET", "http://127.0.0.1:10245/", http.StatusOK},
		{"GET", "http://localhost:10245/", http.StatusOK},
		{"GET", "http://[::1]:10245/", http.StatusOK},
		{"GET", "http://192.0.2.10/", http.StatusOK},
		{"GET", "http://rebound.example:10245/", http.StatusMisdirectedRequest},
		{"GET", "http://127.0.0.1.rebound.example/top", http.StatusMisdirectedRequest},
		{"GET", "http://localhost.rebound.example/top", http.StatusMisdirectedRequest},
		{"POST", "http://127.0.0.1/top", http.StatusMethodNotAllowed},
		{"DELETE", "http://127.0.0.1/", http.StatusMethodNotAllowed},
		{"GET", "http://127.0.0.1/favicon.ico", http.StatusNotFound},
	} {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest(c.method, c.url, nil))
		if w.Code != c.want {
			t.Errorf("%s %s: status %d, want %d", c.method, c.url, w.Code, c.want)
		}
		if w.Code == http.StatusOK && !strings.HasPrefix(w.Header().Get("Content-Security-Policy"), "default-src 'none'; ") {
			t.Errorf("%s: policy %q", c.url, w.Header().Get("Content-Security-Policy"))
		}
		if origin := w.Header().Get("Access-Control-Allow-Origin"); origin != "" {
			t.Errorf("%s: scripts of %s may read it", c.url, origin)
		}
	}
	if n := readings.Load(); n != 0 {
		t.Errorf("%d readings for requests that were refused, or for the page alone", n)
	}
	if body := get(handler, "/").Body.String(); strings.Contains(body, "http://") && !strings.Contains(body, "www.w3.org") || strings.Contains(body, "https://") {
		t.Error("the page names a place elsewhere")
	}
}

// TestWebCrossSite: what a browser asks for another site is refused and has nothing read; a link to the
// page is followed.
func TestWebCrossSite(t *testing.T) {
	handler, readings := webHandler(t, newDatapath(t), time.Hour)
	for _, c := range []struct {
		path    string
		headers []string
		want    int
	}{
		{"/top", []string{"Sec-Fetch-Site: cross-site", "Origin: http://evil.example"}, http.StatusForbidden},
		{"/top", []string{"Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: no-cors", "Sec-Fetch-Dest: image"}, http.StatusForbidden},
		{"/top", []string{"Sec-Fetch-Site: same-site"}, http.StatusForbidden}, // another port
		{"/top", []string{"Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: document"}, http.StatusForbidden},
		{"/top", []string{"Origin: http://evil.example"}, http.StatusForbidden},
		{"/top", []string{"Origin: http://127.0.0.1:8080"}, http.StatusForbidden},
		{"/top", []string{"Origin: null"}, http.StatusForbidden},
		{"/", []string{"Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: iframe"}, http.StatusForbidden},
		{"/", []string{"Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: document"}, http.StatusOK},
		{"/", []string{"Sec-Fetch-Site: none"}, http.StatusOK},
	} {
		if code := getWith(handler, c.path, c.headers...).Code; code != c.want {
			t.Errorf("%s with %q: status %d, want %d", c.path, c.headers, code, c.want)
		}
	}
	if n := readings.Load(); n != 0 {
		t.Errorf("%d readings for other sites", n)
	}
	for _, headers := range [][]string{nil, {"Sec-Fetch-Site: same-origin"}, {"Sec-Fetch-Site: none"}, {"Origin: http://127.0.0.1:10245"}} {
		if code := getWith(handler, "/top", headers...).Code; code != http.StatusOK {
			t.Errorf("with %q: status %d", headers, code)
		}
	}
}

// TestWebReadsOnce: however many ask, the maps are read once an interval.
func TestWebReadsOnce(t *testing.T) {
	handler, readings := webHandler(t, newDatapath(t), time.Hour)
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() { ask(t, handler, "") })
	}
	all.Wait()
	if n := readings.Load(); n != 1 {
		t.Errorf("%d readings for 20 questions", n)
	}
}

// TestWebUsage: what is wrong is said at the shell.
func TestWebUsage(t *testing.T) {
	bpffs := newDatapath(t)
	for args, want := range map[string]struct {
		code int
		says string
	}{
		"--interval 1ms":                    {cli.ExitUsage, "too short"},
		"one":                               {cli.ExitUsage, "unexpected argument"},
		"--bpffs " + t.TempDir():            {cli.ExitNoDatapath, "no datapath"},
		"--bpffs " + bpffs + " --listen 1:": {cli.ExitFailure, "listen tcp"},
	} {
		_, errs, code := run(append([]string{"web"}, strings.Fields(args)...)...)
		if code != want.code || !strings.Contains(errs, want.says) {
			t.Errorf("web %s: exit code %d, said %q", args, code, errs)
		}
	}
}

// mostBytes is how large an answer is at most, whatever the cluster has.
const mostBytes = 128 << 10

// TestWebLarge: with 10,000 Services an answer has the first of each list alone.
func TestWebLarge(t *testing.T) {
	tier.Slow(t, "writes 10,000 Services")
	const services = 10_000
	bpffs, _ := pinned(t, largeCluster(services))
	handler, _ := webHandler(t, bpffs, 0)
	ask(t, handler, "")
	for id := range uint32(2000) {
		counted(t, bpffs, id, uint64(id), 1)
	}
	var a webAnswer
	var took time.Duration
	wait.Until(t, "a reading after the pause", func() bool {
		begin := time.Now()
		w := get(handler, "/top?service="+url.QueryEscape("team-0/"+hostile))
		took = time.Since(begin)
		check(t, json.Unmarshal(w.Body.Bytes(), &a))
		if w.Body.Len() > mostBytes {
			t.Errorf("an answer of %d bytes", w.Body.Len())
		}
		return len(a.Refusals.Ports) > 0
	})
	t.Logf("a reading of %d Services and its answer took %s", services, took)
	if a.Services != services || a.Matching != services || len(a.Rows) != 25 {
		t.Errorf("%d Services, %d rows", a.Services, len(a.Rows))
	}
	if c := a.Chosen; c == nil || len(c.Ports) != 8 || c.MorePorts != 92 || len(c.Ports[0].Backends) != 20 {
		t.Errorf("chosen: %+v", c)
	}
	if len(a.Refusals.Ports) != 20 {
		t.Errorf("%d ports with refusals", len(a.Refusals.Ports))
	}
	if a := ask(t, handler, "filter=service-99&offset=25"); a.Matching != 110 || len(a.Rows) != 25 {
		t.Errorf("%d of %d with the filter", len(a.Rows), a.Matching)
	}
}

// hostile is a name that is markup wherever text is taken for it, with a part that is wider than a
// phone.
const hostile = `<img src=x onerror=hacked=1>"'&WWWWWWWWWWWWWWWWWWWWWWWWWWWWWW`

// largeCluster has so many Services, each with ports and endpoints; the last one has a hostile name,
// many ports and many endpoints.
func largeCluster(n int) (list []served) {
	for i := range n - 1 {
		title := fmt.Sprintf("team-%d/service-%d", i%50, i)
		cluster := netip.AddrFrom4([4]byte{10, 96 + byte(i>>16), byte(i >> 8), byte(i)})
		list = append(list, served{
			&model.Service{
				Name: name(title), Type: "ClusterIP", ClusterIPs: []netip.Addr{cluster},
				Ports: []model.ServicePort{{Name: "http", Protocol: model.TCP, Port: 80}},
			},
			[]*model.Slice{slice(title, "http", model.TCP, 8080, endpoints(i, 3)...)},
		})
	}
	large := "team-0/" + hostile
	s := served{&model.Service{Name: name(large), Type: "ClusterIP", ClusterIPs: addrs("10.200.0.1"), Algorithm: model.LeastConn}, nil}
	for i := range 100 {
		port := fmt.Sprintf("p%d", i)
		s.service.Ports = append(s.service.Ports, model.ServicePort{Name: port, Protocol: model.TCP, Port: uint16(1000 + i)})
		s.slices = append(s.slices, slice(large, port, model.TCP, 8080, endpoints(n+i, 100)...))
	}
	return append(list, s)
}

func endpoints(of, n int) (list []model.Endpoint) {
	for i := range n {
		at := of*n + i
		list = append(list, ready(netip.AddrFrom4([4]byte{10, 128 + byte(at>>16)&63, byte(at >> 8), byte(at)}).String(), "node-b"))
	}
	return list
}
