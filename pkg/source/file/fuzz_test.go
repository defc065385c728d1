package file

import (
	"encoding/base64"
	"errors"
	"io"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"
	"k8s.io/klog/v2"

	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/tests/bounds"
)

// fuzzOptions have ranges of both families.
func fuzzOptions() Options {
	return Options{ServiceRanges: prefixes("10.96.0.0/24 fd96::/112")}
}

// standing is a file that is there before the one that is tried.
const standing = `
apiVersion: v1
kind: Service
metadata: {name: standing}
spec: {type: NodePort, clusterIP: 10.96.0.7, ports: [{port: 80, nodePort: 30080}]}
`

// FuzzManifest: whatever a file holds, it is taken as a whole or rejected with faults that
// have a place, and then nothing changes. What is served has an address of each family that
// it asked for, which no other Service has, and a restart serves the same.
func FuzzManifest(f *testing.F) {
	silence(f)
	inMemory(f)
	for _, name := range []string{"testdata/faults.txtar", "testdata/scans/dual-stack.txtar", "testdata/scans/nodes.txtar", "testdata/scans/swap.txtar"} {
		archive, err := txtar.ParseFile(name)
		if err != nil {
			f.Fatal(err)
		}
		for _, file := range archive.Files {
			if isManifest(file.Name) {
				f.Add(file.Data)
			}
		}
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		bounds.Check(t, len(raw), func() { tryManifest(t, raw) })
	})
}

// silence keeps the log of what is rejected, input after input, to itself.
func silence(f *testing.F) {
	klog.LogToStderr(false)
	klog.SetOutput(io.Discard)
	f.Cleanup(func() { klog.LogToStderr(true) })
}

// tryManifest puts a manifest in place of a good one, beside another.
func tryManifest(t *testing.T, raw []byte) {
	t.Helper()
	s := offline(t)
	write(t, s.opts.Dir, "a.yaml", portYAML("web", 80))
	write(t, s.opts.Dir, "b.yaml", standing)
	scan(t, s)
	if errs := s.Errors(); len(errs) > 0 || len(s.catalog.services.now) != 2 {
		t.Fatalf("before: %d Services, %v", len(s.catalog.services.now), errs)
	}
	before, assigned := s.catalog.models(), maps.Clone(s.catalog.assigned.now)
	write(t, s.opts.Dir, "a.yaml", string(raw))
	scan(t, s)
	if errs := s.Errors(); len(errs) > 0 {
		for _, err := range errs {
			if reason := err.Error(); !strings.HasPrefix(reason, "a.yaml: ") {
				t.Fatalf("error of another place: %v", err)
			}
		}
		if !reflect.DeepEqual(before, s.catalog.models()) || !reflect.DeepEqual(assigned, s.catalog.assigned.now) {
			t.Fatalf("a rejected file leaves %v, %v", s.catalog.models(), s.catalog.assigned.now)
		}
	}
	wantServed(t, s)
	wantRestart(t, s)
}

// memoryEnv is where the processes of a fuzz target have their folders.
const memoryEnv = "BEELINE_FUZZ_MEMORY"

// inMemory gives [offline] a folder in memory. It is the first process of a fuzz target that
// removes it, for the others are killed.
func inMemory(f *testing.F) {
	if os.Getenv(memoryEnv) != "" {
		return
	}
	dir, err := os.MkdirTemp("/dev/shm", "beeline-fuzz-")
	if err != nil {
		f.Fatal(err)
	}
	f.Setenv(memoryEnv, dir)
	f.Cleanup(func() { os.RemoveAll(dir) })
}

// offline returns a source with folders in memory, which the caller scans.
func offline(t *testing.T) *Source {
	t.Helper()
	dir, err := os.MkdirTemp(os.Getenv(memoryEnv), "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	opts := fuzzOptions()
	opts.Dir, opts.StateFile = filepath.Join(dir, "manifests"), filepath.Join(dir, "state")
	if err := os.Mkdir(opts.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return reopen(t, opts)
}

// reopen returns another source with the folders of one.
func reopen(t *testing.T, opts Options) *Source {
	t.Helper()
	s, _ := newSource(t, opts)
	t.Cleanup(s.state.close)
	return s
}

// wantServed fails the test unless all Services have what is theirs alone.
func wantServed(t *testing.T, s *Source) {
	t.Helper()
	addrs := map[netip.Addr]model.Name{}
	ports := map[claim]model.Name{}
	for name, svc := range s.catalog.services.now {
		if svc.model == nil {
			continue
		}
		for i, family := range svc.object.service.families {
			if i >= len(svc.model.ClusterIPs) || !svc.model.ClusterIPs[i].IsValid() || model.FamilyOf(svc.model.ClusterIPs[i]) != family {
				t.Fatalf("%s has the cluster IPs %v, of %v", name, svc.model.ClusterIPs, svc.object.service.families)
			}
		}
		for _, addr := range svc.model.ClusterIPs {
			if other, taken := addrs[addr]; taken {
				t.Fatalf("%s and %s have %s", name, other, addr)
			}
			addrs[addr] = name
		}
		for _, p := range svc.model.Ports {
			c := claim{port: p.NodePort, proto: p.Protocol}
			if other, taken := ports[c]; taken && p.NodePort != 0 {
				t.Fatalf("%s and %s have %s", name, other, c)
			}
			ports[c] = name
		}
	}
}

// wantRestart fails the test unless a source that begins with the state of s serves the
// same, and keeps the same state.
func wantRestart(t *testing.T, s *Source) {
	t.Helper()
	saved := compacted(t, s)
	again := reopen(t, s.opts)
	again.recall(nil)
	if got, want := again.catalog.models(), s.catalog.models(); !reflect.DeepEqual(got, want) {
		t.Fatalf("after a restart there is %+v, before %+v", got, want)
	}
	if !reflect.DeepEqual(again.catalog.slices.now, s.catalog.slices.now) || !reflect.DeepEqual(again.catalog.nodes.now, s.catalog.nodes.now) {
		t.Fatal("after a restart there are other slices or nodes")
	}
	if next := compacted(t, again); next != saved {
		t.Fatalf("after a restart the state is\n%s, before\n%s", next, saved)
	}
}

// compacted saves the state of s and returns what the file has when it is one record.
func compacted(t *testing.T, s *Source) string {
	t.Helper()
	err := s.save()
	s.end()
	data, readErr := os.ReadFile(s.opts.StateFile)
	if err := errors.Join(err, readErr); err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// FuzzState: whatever the state file holds, it is rejected or leads to Services each of which
// has what is its own, whose state serves the same again.
func FuzzState(f *testing.F) {
	silence(f)
	inMemory(f)
	seed := `{"version":1,"assigned":{"default/web":{"clusterIPs":["10.96.0.84"]}},"files":{` +
		`"a.yaml":"` + base64.StdEncoding.EncodeToString([]byte(portYAML("web", 80))) + `",` +
		`"b.yaml":"` + base64.StdEncoding.EncodeToString([]byte(standing)) + `"}}`
	f.Add([]byte(seed))
	for _, change := range [][2]string{
		{`"clusterIPs":["10.96.0`, `"clusterIPs":["","::ffff:10.96.0.9","fe80::1%eth0","10.96.0.7","10.96.0`},
		{`"default/web"`, `"/"`},
		{`"a.yaml":"`, `"a.yaml":"AAAA`},
		{`"version":1`, `"version":2`},
		{`"version":1`, `"version":1,"assigned":null,"other":{}`},
	} {
		if !strings.Contains(seed, change[0]) {
			f.Fatalf("no %s in %s", change[0], seed)
		}
		f.Add([]byte(strings.Replace(seed, change[0], change[1], 1)))
	}
	for _, more := range []string{"\n" + seed, "\n" + `{"version":1,"files":{"b.yaml":null},"assigned":{"default/web":null}}`, "\n" + seed[:90], "\n{\n"} {
		f.Add([]byte(seed + more))
	}
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		bounds.Check(t, 2*len(data), func() {
			s := offline(t)
			write(t, filepath.Dir(s.opts.StateFile), "state", string(data))
			st, err := openState(s.opts.StateFile)
			if err != nil {
				return
			}
			st.close()
			s = reopen(t, s.opts)
			s.recall(nil)
			wantServed(t, s)
			for _, err := range s.Errors() {
				if err.Error() == "" {
					t.Fatal("an error without a text")
				}
			}
			// What is rejected now, nobody has accepted before.
			for name, m := range s.files {
				if m.good == nil {
					delete(s.files, name)
				}
			}
			s.plan()
			wantRestart(t, s)
		})
	})
}

// TestStateOfOthers: a state file that is rejected names itself.
func TestStateOfOthers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	write(t, filepath.Dir(path), "state", `{"version": 1, "assigned": {"default/web": {"clusterIPs": [""]}}}`)
	if _, err := openState(path); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("got %v", err)
	}
}

// models returns the Services that are served.
func (c *catalog) models() map[model.Name]*model.Service {
	models := map[model.Name]*model.Service{}
	for name, s := range c.services.now {
		if s.model != nil {
			models[name] = s.model
		}
	}
	return models
}
