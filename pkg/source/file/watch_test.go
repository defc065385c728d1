package file

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/tests/wait"
)

// patience bounds how long a test waits for what must come.
var patience = wait.Limit

// running is a source that follows a folder.
type running struct {
	*Source
	t    *testing.T
	sink *recorder
	stop func()
}

// start runs a source until it is stopped or the test ends. It reads the folder only at events,
// not by time.
func start(t *testing.T, opts Options) *running {
	t.Helper()
	opts.ServiceRanges = prefixes("10.96.0.0/16")
	s, sink := newSource(t, opts)
	s.rescan = time.Hour
	s.retry = 20 * time.Millisecond
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- s.Run(ctx) }()
	stop := sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return &running{s, t, sink, stop}
}

// await waits until the Services and errors are as want says: "NAME:PORT"
// sorted, then a part of each error.
func (r *running) await(services string, errs ...string) {
	r.t.Helper()
	var got string
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		got = r.state()
		if r.is(got, services, errs) {
			return
		}
	}
	r.t.Fatalf("it is\n%s\nwant %s and errors %q", got, services, errs)
}

func (r *running) state() string {
	var names []string
	for _, svc := range r.sink.services() {
		names = append(names, fmt.Sprintf("%s:%d", svc.Name.Name, svc.Ports[0].Port))
	}
	slices.Sort(names)
	lines := []string{strings.Join(names, " ")}
	for _, err := range r.Errors() {
		lines = append(lines, err.Error())
	}
	return strings.Join(lines, "\n")
}

func (r *running) is(got, services string, errs []string) bool {
	lines := strings.Split(got, "\n")
	if lines[0] != services || len(lines) != 1+len(errs) {
		return false
	}
	for i, err := range errs {
		if !strings.Contains(lines[i+1], err) {
			return false
		}
	}
	return true
}

func portYAML(name string, port int) string {
	return serviceYAML(name, fmt.Sprintf("ports: [{port: %d}]", port))
}

func rename(t *testing.T, from, to string) {
	t.Helper()
	if err := os.Rename(from, to); err != nil {
		t.Fatal(err)
	}
}

func TestWatch(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, dir, "a.yaml", portYAML("a", 1))
	r := start(t, Options{Dir: dir})
	r.await("a:1")

	write(t, dir, "a.yaml", portYAML("a", 2))
	r.await("a:2")
	write(t, dir, "b.yaml", portYAML("b", 1))
	r.await("a:2 b:1")
	rename(t, filepath.Join(dir, "b.yaml"), filepath.Join(dir, "c.yaml"))
	write(t, dir, ".a.swp", portYAML("a", 3))
	rename(t, filepath.Join(dir, ".a.swp"), filepath.Join(dir, "a.yaml"))
	r.await("a:3 b:1")
	write(t, dir, "a.yaml", portYAML("a", 0))
	r.await("a:3 b:1", "a.yaml: document 1: line 5: spec.ports[0].port: ")
	write(t, dir, "a.yaml", portYAML("a", 4))
	r.await("a:4 b:1")
	if err := os.Remove(filepath.Join(dir, "c.yaml")); err != nil {
		t.Fatal(err)
	}
	r.await("a:4")
}

// TestWatchConfigMap changes the folder as the kubelet does for a mounted
// ConfigMap: all files at once, by the rename of a link.
// TestWatchUnfinished: a manifest that is being written again keeps its Services until its file is closed, or
// has not been written to for long.
func TestWatchUnfinished(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, dir, "a.yaml", portYAML("a", 1)+"---\n"+portYAML("b", 1))
	r := start(t, Options{Dir: dir})
	r.await("a:1 b:1")
	file, err := os.OpenFile(filepath.Join(dir, "a.yaml"), os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	add := func(text string) {
		t.Helper()
		if _, err := file.WriteString(text); err != nil {
			t.Fatal(err)
		}
	}
	add(portYAML("a", 2))
	write(t, dir, "c.yaml", portYAML("c", 1)) // both have been looked at when it is there
	r.await("a:1 b:1 c:1")
	add("---\n" + portYAML("b", 2))
	write(t, dir, "c.yaml", portYAML("c", 2))
	r.await("a:1 b:1 c:2")
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	r.await("a:2 b:2 c:2")

	if file, err = os.OpenFile(filepath.Join(dir, "a.yaml"), os.O_WRONLY|os.O_TRUNC, 0); err != nil {
		t.Fatal(err)
	}
	add(portYAML("a", 3))
	write(t, dir, "c.yaml", portYAML("c", 3))
	r.await("a:2 b:2 c:3")
	long := time.Now().Add(-2 * longestPause)
	if err := os.Chtimes(filepath.Join(dir, "a.yaml"), long, long); err != nil {
		t.Fatal(err)
	}
	r.await("a:3 c:3")
}

func TestWatchConfigMap(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	publish := func(version string, port int) {
		t.Helper()
		if err := os.Mkdir(filepath.Join(dir, version), 0o700); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, version), "a.yaml", portYAML("a", port))
		write(t, filepath.Join(dir, version), "b.yaml", portYAML("b", port))
		if err := os.Symlink(version, filepath.Join(dir, "..data_tmp")); err != nil {
			t.Fatal(err)
		}
		rename(t, filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data"))
	}
	publish("..1", 1)
	for _, name := range []string{"a.yaml", "b.yaml"} {
		if err := os.Symlink(filepath.Join("..data", name), filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	r := start(t, Options{Dir: dir})
	r.await("a:1 b:1")
	publish("..2", 2)
	r.await("a:2 b:2")
	if n := len(r.sink.drain()); n != 2 {
		t.Errorf("%d updates, want 2: both files change at once", n)
	}
}

// TestWatchFolderGone takes the folder away, also for another one with its name.
func TestWatchFolderGone(t *testing.T) {
	t.Parallel()
	parent := t.TempDir()
	dir := filepath.Join(parent, "manifests")
	mkdir := func() {
		t.Helper()
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	mkdir()
	write(t, dir, "a.yaml", portYAML("a", 1))
	r := start(t, Options{Dir: dir})
	r.await("a:1")

	rename(t, dir, filepath.Join(parent, "old"))
	r.await("a:1", "list manifests: ", "watch manifests: ")
	mkdir()
	write(t, dir, "a.yaml", portYAML("a", 2))
	r.await("a:2")
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	mkdir()
	write(t, dir, "a.yaml", portYAML("a", 3))
	r.await("a:3")
	write(t, dir, "a.yaml", portYAML("a", 4))
	r.await("a:4")
}

// TestFollowLinkedFolder swaps a link to the folder, of which there is no event,
// and checks that the next scan watches the new folder.
func TestFollowLinkedFolder(t *testing.T) {
	t.Parallel()
	parent := t.TempDir()
	link := filepath.Join(parent, "manifests")
	w := &watcher{dir: link}
	defer w.close()
	for _, name := range []string{"1", "2"} {
		dir := filepath.Join(parent, name)
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(dir, link+".new"); err != nil {
			t.Fatal(err)
		}
		rename(t, link+".new", link)
		if err := w.follow(); err != nil {
			t.Fatal(err)
		}
		write(t, dir, "a.yaml", "")
		events, _ := w.channels()
		select {
		case <-events:
		case <-time.After(patience):
			t.Fatalf("no event of a file in %s", dir)
		}
	}
}

// TestStartWithoutFolder starts while the folder is away: what ran before runs,
// and nothing is called complete until the folder is back.
func TestStartWithoutFolder(t *testing.T) {
	t.Parallel()
	opts := Options{Dir: filepath.Join(t.TempDir(), "manifests"), StateFile: filepath.Join(t.TempDir(), "state")}
	if err := os.Mkdir(opts.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	opts.ServiceRanges = prefixes("10.96.0.0/16")
	write(t, opts.Dir, "a.yaml", portYAML("a", 1))
	first, _ := newSource(t, opts)
	scan(t, first)
	rename(t, opts.Dir, opts.Dir+".away")

	r := start(t, opts)
	r.await("a:1", "list manifests: ", "watch manifests: ")
	if n := r.syncs(); n != 0 {
		t.Fatalf("synced %d times without a folder", n)
	}
	rename(t, opts.Dir+".away", opts.Dir)
	r.await("a:1")
	for end := time.Now().Add(patience); r.syncs() == 0 && time.Now().Before(end); {
		time.Sleep(5 * time.Millisecond)
	}
	if n := r.syncs(); n != 1 {
		t.Fatalf("synced %d times, want once", n)
	}
}

func (r *running) syncs() int {
	r.sink.mu.Lock()
	defer r.sink.mu.Unlock()
	return r.sink.synced
}

// TestOddFiles puts into the folder what is no manifest but has a manifest's
// name. None of it may stop the others from being served, or block.
func TestOddFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, dir, "a.yaml", portYAML("a", 1))
	if err := os.Mkdir(filepath.Join(dir, "folder.yaml"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("nowhere", filepath.Join(dir, "dangling.yaml")); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(filepath.Join(dir, "pipe.yaml"), 0o600); err != nil {
		t.Fatal(err)
	}
	r := start(t, Options{Dir: dir})
	r.await("a:1", "dangling.yaml: ", "pipe.yaml: not a regular file")
}

// TestManifestBecomesPipe puts a pipe in the place of a manifest that is served: its Services stay, also for a source
// that starts then, and changes of others get through.
func TestManifestBecomesPipe(t *testing.T) {
	t.Parallel()
	opts := Options{Dir: t.TempDir(), StateFile: filepath.Join(t.TempDir(), "state")}
	const fault = "a.yaml: not a regular file"
	write(t, opts.Dir, "a.yaml", portYAML("a", 1))
	r := start(t, opts)
	r.await("a:1")
	pipe := filepath.Join(opts.Dir, ".pipe")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	rename(t, pipe, filepath.Join(opts.Dir, "a.yaml"))
	write(t, opts.Dir, "b.yaml", portYAML("b", 1))
	r.await("a:1 b:1", fault)
	r.stop()
	start(t, opts).await("a:1 b:1", fault)
}

// TestBusyFolder writes to the folder without pause: changes get through all the
// same.
func TestBusyFolder(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := start(t, Options{Dir: dir})
	stop := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			case <-time.After(5 * time.Millisecond):
				_ = os.WriteFile(filepath.Join(dir, "log.txt"), []byte("x"), 0o600)
			}
		}
	}()
	defer func() { close(stop); <-done }()
	write(t, dir, "a.yaml", portYAML("a", 1))
	r.await("a:1")
}
