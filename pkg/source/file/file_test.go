package file

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/tools/txtar"

	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/source"
)

// recorder is a sink that keeps what it was told.
type recorder struct {
	mu      sync.Mutex
	updates []source.Update
	synced  int
}

func (r *recorder) Apply(u source.Update) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.updates = append(r.updates, u)
}

func (r *recorder) Synced() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.synced++
}

// drain returns the updates since the last call.
func (r *recorder) drain() []source.Update {
	r.mu.Lock()
	defer r.mu.Unlock()
	updates := r.updates
	r.updates = nil
	return updates
}

// services returns the Services that the updates left, by "namespace/name".
func (r *recorder) services() map[string]*model.Service {
	r.mu.Lock()
	defer r.mu.Unlock()
	services := map[string]*model.Service{}
	for _, u := range r.updates {
		for _, name := range u.DeleteServices {
			delete(services, name.String())
		}
		for _, svc := range u.PutServices {
			services[svc.Name.String()] = svc
		}
	}
	return services
}

// prefixes parses a list of CIDRs separated by white space.
func prefixes(list string) []netip.Prefix {
	var all []netip.Prefix
	for _, s := range strings.Fields(list) {
		all = append(all, netip.MustParsePrefix(s))
	}
	return all
}

// newSource returns a source of a folder, which the caller scans or runs.
func newSource(t testing.TB, opts Options) (*Source, *recorder) {
	t.Helper()
	sink := &recorder{}
	opts.Sink, opts.NodeName = sink, "this"
	s, err := New(opts)
	if err != nil {
		t.Fatal(err)
	}
	return s, sink
}

// scan reads the folder once.
func scan(t *testing.T, s *Source) {
	t.Helper()
	w := &watcher{dir: s.opts.Dir}
	defer w.close()
	s.scan(w)
}

func write(t *testing.T, dir, name, data string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(data), 0o600); err != nil {
		t.Fatal(err)
	}
}

// clear deletes the manifests of a folder.
func clear(t *testing.T, dir string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
			t.Fatal(err)
		}
	}
}

// TestScans runs the cases of testdata/scans. In each, a folder is brought to
// the state of 1/, 2/ and so on, and N.want is what a scan then passes on. The
// comment's lines "ranges: CIDR..." and "restart: N..." give the ranges and the
// steps before which the agent is started again.
func TestScans(t *testing.T) {
	cases, err := filepath.Glob("testdata/scans/*.txtar")
	if err != nil || len(cases) == 0 {
		t.Fatal("no cases", err)
	}
	for _, path := range cases {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar"), func(t *testing.T) {
			t.Parallel()
			ar, err := txtar.ParseFile(path)
			if err != nil {
				t.Fatal(err)
			}
			runScans(t, ar)
		})
	}
}

func runScans(t *testing.T, ar *txtar.Archive) {
	opts := Options{Dir: t.TempDir(), StateFile: filepath.Join(t.TempDir(), "state.json")}
	restarts := []string{"1"}
	for _, l := range strings.Split(string(ar.Comment), "\n") {
		if list, ok := strings.CutPrefix(l, "ranges:"); ok {
			opts.ServiceRanges = prefixes(list)
		} else if list, ok := strings.CutPrefix(l, "restart:"); ok {
			restarts = append(restarts, strings.Fields(list)...)
		}
	}
	steps := map[string]map[string]string{}
	for _, f := range ar.Files {
		step, name, _ := strings.Cut(f.Name, "/")
		if steps[step] == nil {
			steps[step] = map[string]string{}
		}
		steps[step][name] = string(f.Data)
	}
	var s *Source
	var sink *recorder
	for n := 1; ; n++ {
		step := fmt.Sprint(n)
		want, ok := steps[step+".want"]
		if !ok {
			if n == 1 {
				t.Fatal("no step in the case")
			}
			return
		}
		clear(t, opts.Dir)
		for name, data := range steps[step] {
			write(t, opts.Dir, name, data)
		}
		if slices.Contains(restarts, step) {
			s, sink = newSource(t, opts)
		}
		scan(t, s)
		if got := dump(sink.drain(), s.Errors()); got != want[""] {
			t.Fatalf("step %s passes on\n%swant\n%s", step, got, want[""])
		}
	}
}

// dump writes updates and errors as the cases have them.
func dump(updates []source.Update, errs []error) string {
	var b strings.Builder
	for i, u := range updates {
		if i > 0 {
			b.WriteString("next update\n")
		}
		for _, svc := range u.PutServices {
			fmt.Fprintf(&b, "put %s %s %s", svc.Name, svc.Type, svc.ClusterIPs)
			for _, p := range svc.Ports {
				fmt.Fprintf(&b, " %s:%d/%s", p.Name, p.Port, p.Protocol)
				if p.NodePort != 0 {
					fmt.Fprintf(&b, "(node port %d)", p.NodePort)
				}
			}
			if svc.HealthCheckPort != 0 {
				fmt.Fprintf(&b, " health check %d", svc.HealthCheckPort)
			}
			if svc.AffinitySeconds != 0 {
				fmt.Fprintf(&b, " affinity %ds", svc.AffinitySeconds)
			}
			b.WriteString("\n")
		}
		for _, p := range u.PutNodes {
			fmt.Fprintf(&b, "put node %s %s %s", p.Name, p.Tunnel, p.Addrs)
			if p.Zone != "" {
				fmt.Fprintf(&b, " in %s", p.Zone)
			}
			b.WriteString("\n")
		}
		if u.LocalNode != nil {
			fmt.Fprintf(&b, "this node is in %q\n", u.LocalNode.Zone)
		}
		for _, name := range u.DeleteNodes {
			fmt.Fprintf(&b, "delete node %s\n", name)
		}
		for _, name := range u.DeleteServices {
			fmt.Fprintf(&b, "delete %s\n", name)
		}
		for _, slice := range u.PutSlices {
			fmt.Fprintf(&b, "put slice %s of %s %s", slice.Name, slice.Service, slice.Family)
			for _, ep := range slice.Endpoints {
				fmt.Fprintf(&b, " %s", ep.Addr)
			}
			for _, p := range slice.Ports {
				fmt.Fprintf(&b, " %s:%d/%s", p.Name, p.Port, p.Protocol)
			}
			b.WriteString("\n")
		}
		for _, name := range u.DeleteSlices {
			fmt.Fprintf(&b, "delete slice %s\n", name)
		}
	}
	for _, err := range errs {
		fmt.Fprintf(&b, "error %s\n", err)
	}
	return b.String()
}

// TestExamples reads the repository's examples, which the README and the demo
// show.
func TestExamples(t *testing.T) {
	s, sink := newSource(t, Options{Dir: "../../../examples", ServiceRanges: prefixes("10.96.0.0/16 fd96::/112")})
	scan(t, s)
	if errs := s.Errors(); len(errs) > 0 {
		t.Fatal(errs)
	}
	updates := sink.drain()
	if len(updates) != 1 || sink.synced != 1 {
		t.Fatalf("%d updates and %d times synced, want one of each", len(updates), sink.synced)
	}
	u := updates[0]
	if len(u.PutServices) != 4 || len(u.PutSlices) != 5 {
		t.Fatalf("%d Services and %d slices, want 4 and 5", len(u.PutServices), len(u.PutSlices))
	}
	for _, svc := range u.PutServices {
		for i, ip := range svc.ClusterIPs {
			if !s.rules.ranges[i].prefix.Contains(ip) {
				t.Errorf("%s has cluster IP %s outside %s", svc.Name, ip, s.rules.ranges[i].prefix)
			}
		}
		switch svc.Name.Name {
		case "dual":
			if len(svc.ClusterIPs) != 2 {
				t.Errorf("dual has cluster IPs %s, want two", svc.ClusterIPs)
			}
		case "sticky":
			if svc.AffinitySeconds != 60 || svc.Ports[0].NodePort == 0 {
				t.Errorf("sticky has affinity %d s and node port %d, want 60 s and one", svc.AffinitySeconds, svc.Ports[0].NodePort)
			}
		}
	}
}
