package report

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/netns"
	"github.com/beeline-lb/beeline/tests/bounds"
	"github.com/beeline-lb/beeline/tests/targz"
	"github.com/beeline-lb/beeline/tests/wait"
)

// The main thread runs no test: one that has joined a namespace must be able to end.
func init() { runtime.LockOSThread() }

// text returns a part with a content and an error.
func text(name, content string, err error) Part {
	return Part{name, whole(func(context.Context) ([]byte, error) { return []byte(content), err })}
}

// write returns the files of an archive by their names, and the names of what is missing.
func write(t *testing.T, o Options, parts ...Part) (files map[string]string, missing []string) {
	t.Helper()
	var out bytes.Buffer
	list, err := Write(t.Context(), &out, "dir", parts, o)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range list {
		missing = append(missing, m.Name+": "+m.Err.Error())
	}
	files = make(map[string]string)
	for name, content := range targz.Files(t, &out) {
		files[strings.TrimPrefix(name, "dir/")] = content
	}
	return files, missing
}

// TestFailures: a part that fails or panics is named with its reason, and those after it are there.
func TestFailures(t *testing.T) {
	files, missing := write(t, Options{Timeout: wait.Limit, part: wait.Limit},
		text("half.txt", "the first half", errors.New("no more\nof it")),
		Part{"panics.txt", func(context.Context, io.Writer) error { panic("oops") }},
		text("well.txt", "all of it", nil))
	if files["half.txt"] != "the first half" || files["well.txt"] != "all of it" || len(files) != 3 {
		t.Errorf("the files are %q", files)
	}
	if got := strings.Join(missing, "; "); got != "half.txt: no more of it; panics.txt: panic: oops" {
		t.Errorf("missing are %s", got)
	}
	for _, line := range []string{"3 parts, 2 of them not whole or not there.\n", "FAILED: no more of it\n", "FAILED: panic: oops\n"} {
		if !strings.Contains(files["index.txt"], line) {
			t.Errorf("the index lacks %q:\n%s", line, files["index.txt"])
		}
	}
}

// TestHang: a part that does not end is given up and named.
func TestHang(t *testing.T) {
	hangs := make(chan struct{})
	t.Cleanup(func() { close(hangs) })
	files, missing := write(t, Options{Timeout: wait.Limit, part: time.Millisecond, grace: time.Millisecond},
		Part{"hangs.txt", func(context.Context, io.Writer) error { <-hangs; return nil }})
	if len(missing) != 1 || missing[0] != "hangs.txt: given up: it took too long" || !strings.Contains(files["index.txt"], "FAILED: given up") {
		t.Errorf("missing are %q, the files %q", missing, files)
	}
}

// TestTimeout: a part whose time is over may give what it has, and once the time for all is over
// nothing more is read.
func TestTimeout(t *testing.T) {
	slow := Part{"slow.txt", whole(func(ctx context.Context) ([]byte, error) { <-ctx.Done(); return []byte("some"), ctx.Err() })}
	files, missing := write(t, Options{Timeout: wait.Limit, part: time.Millisecond, grace: wait.Limit}, slow)
	if files["slow.txt"] != "some" || len(missing) != 1 || missing[0] != "slow.txt: context deadline exceeded" {
		t.Errorf("the files are %q, missing %q", files, missing)
	}
	_, missing = write(t, Options{Timeout: time.Millisecond, grace: wait.Limit}, slow, text("late.txt", "never read", nil))
	if len(missing) != 2 || missing[1] != "late.txt: not read: the time for the report is over" {
		t.Errorf("missing %q", missing)
	}
}

// TestSize: a part is cut, and all together are.
func TestSize(t *testing.T) {
	files, missing := write(t, Options{maxPart: 10, maxTotal: 15},
		text("one.txt", "0123456789abc", nil), text("two.txt", "0123456789", nil), text("three.txt", "0", nil))
	if files["one.txt"] != "0123456789" || files["two.txt"] != "01234" || len(files) != 3 {
		t.Errorf("the files are %q", files)
	}
	if want := "one.txt: cut after 10 of 13 bytes; two.txt: cut after 5 of 10 bytes; three.txt: cut after 0 of 1 bytes"; strings.Join(missing, "; ") != want {
		t.Errorf("missing are %q", missing)
	}
}

// TestSizeOfPart: of a part that is far too large no more is in memory than the archive has of it.
func TestSizeOfPart(t *testing.T) {
	const size = 64 << 20
	lines := bytes.Repeat([]byte("2026-03-01T12:00:00+0000 node-a\n"), 1024)
	var missing []Missing
	bounds.Within(t, wait.Limit, 40<<20, func() {
		var err error
		missing, err = Write(t.Context(), io.Discard, "dir", []Part{{"large.txt", func(_ context.Context, to io.Writer) error {
			for range size / len(lines) {
				_, _ = to.Write(lines)
			}
			return nil
		}}}, Options{Timeout: wait.Limit, part: wait.Limit})
		if err != nil {
			t.Error(err)
		}
	})
	if want := fmt.Sprintf("cut after %d of %d bytes", maxPart, size); len(missing) != 1 || missing[0].Err.Error() != want {
		t.Errorf("missing are %v, want %s", missing, want)
	}
}

// TestSizeWithSecrets: of a part that is cut, no more is searched for secrets than is kept and the longest
// secret; one that the cut has divided is not kept, however much was removed before it.
func TestSizeWithSecrets(t *testing.T) {
	const room = 64 << 10
	many := strings.Repeat("token="+strings.Repeat("x", 994)+"\n", 50)
	divided := "https://me:planted"
	content := many + strings.Repeat("a\n", (room+maxSecret-len(many)-len(divided))/2) + divided + "@192.0.2.1:6443/\n" + strings.Repeat(many, 10)
	files, missing := write(t, Options{maxPart: room}, text("a.txt", content, nil))
	kept := files["a.txt"]
	if strings.Contains(kept, "planted") || !strings.HasPrefix(kept, "token=[removed]\ntoken=[removed]\n") || !strings.HasSuffix(kept, "a\na\n") {
		t.Errorf("kept %d bytes, which end with %q", len(kept), kept[max(0, len(kept)-100):])
	}
	if want := fmt.Sprintf("a.txt: cut after %d of %d bytes", len(kept), len(content)); strings.Join(missing, "; ") != want {
		t.Errorf("missing are %q, want %q", missing, want)
	}
	if !strings.Contains(files["index.txt"], "50 removed that look like secrets") {
		t.Errorf("the index:\n%s", files["index.txt"])
	}
}

// TestNamespace: parts are read in the network namespace of the caller.
func TestNamespace(t *testing.T) {
	if unix.Geteuid() != 0 {
		t.Skip("needs root to make network namespaces")
	}
	name := func() string {
		n, err := netns.Current()
		if err != nil {
			t.Error(err)
			return ""
		}
		defer n.Close()
		return n.Name()
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			t.Error(err)
			return
		}
		var inside string
		_, err := Write(t.Context(), io.Discard, "dir", []Part{{"a", func(context.Context, io.Writer) error {
			inside = name()
			return nil
		}}}, Options{Timeout: wait.Limit, part: wait.Limit})
		if own := name(); err != nil || inside != own {
			t.Errorf("read in %s, called in %s: %v", inside, own, err)
		}
	}()
	<-done
}

// TestSecrets: what looks like a secret is taken out of contents and errors, and nothing else is.
func TestSecrets(t *testing.T) {
	for _, secret := range []string{
		"Authorization: Basic cGxhbnRlZDpwbGFudGVk", "bearer planted.0123456789", "https://me:planted@192.0.2.1:6443/",
		`{"token": "planted"}`, "BEELINE_TOKEN=planted", "password: planted", "client-key-data: planted", "MY_SECRET='planted'",
		"eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJwbGFudGVkIn0.c2lnbmF0dXJlLXBsYW50ZWQ",
		"-----BEGIN RSA PRIVATE KEY-----\nMIIplanted\nplanted==\n-----END RSA PRIVATE KEY-----",
		// As journald has it, and as one string.
		"-----BEGIN PRIVATE KEY-----\n2026-03-01T12:00:00+0000 node-a beeline-agent[7]: MIIplanted\n" +
			"2026-03-01T12:00:00+0000 node-a beeline-agent[7]: planted\n2026-03-01T12:00:00+0000 node-a beeline-agent[7]: -----END PRIVATE KEY-----",
		`-----BEGIN EC PRIVATE KEY-----\nMIIplanted\nplan-ted-----END EC PRIVATE KEY-----`,
		"https://me:secret@planted@192.0.2.1:6443/", "https://planted@ed:x@host?a@b",
		"https://me:p#planted@192.0.2.1:6443/", "https://me:p?planted@192.0.2.1:6443/",
		`password: "planted horse planted"`, `password: 'planted horse planted'`, `{\"token\": \"planted horse\"}`, `"password":"a\"planted"`,
		"--token planted", "--token=planted", `["--token", "planted"]`, "--db-password  'planted planted'", "-token planted", "password = planted,planted;planted",
		`["--token","planted"]`, "[\n  \"--token\",\n  \"planted\"\n]", `{\"args\":[\"--token\",\"planted horse\"]}`, `["--token", "a\"planted"]`, `['--token', 'planted horse']`,
		"ARGS=--token planted", "(--token planted)", `usage:\n--token planted`,
	} {
		files, missing := write(t, Options{}, text("a.txt", "before "+secret+" after", errors.New("denied to "+secret)))
		all := files["a.txt"] + files["index.txt"] + strings.Join(missing, "")
		for _, planted := range []string{"planted", "cGxhbnRlZ", "c2lnbmF0", "MII", "horse", "plan-ted", "@ed"} {
			if strings.Contains(all, planted) {
				t.Errorf("%s is in the archive:\n%s", secret, all)
			}
		}
		if !strings.HasPrefix(files["a.txt"], "before ") || !strings.HasSuffix(files["a.txt"], " after") ||
			!strings.Contains(files["index.txt"], "1 removed that look like secrets") {
			t.Errorf("%s became %q:\n%s", secret, files["a.txt"], files["index.txt"])
		}
	}
	const harmless = `dsrSecretFile: /etc/beeline/secret
kubeconfig: /var/lib/kube/token.conf
beeline_datapath_events_total{reason="tunnel_wrong_secret"} 5
{"reason": "tunnel_wrong_secret", "count": 3}, {"name": "token"}
{"token": "", "secret": []}, --dsr-secret-file /etc/beeline/secret
https://192.0.2.1:6443, 2001:db8::1, keys of 16 bytes
the token of the account has expired, image docker://registry/name@sha256:12
{"namespace": "team-secret", "service": "db-token", "portName": "http"}
["shop/db-password", "shop/web"], {"flag": "--token", "value": ""}, --api-key
NAMESPACE     SERVICE        PORT   ADDRESS
team-secret   shop-api-key   http   10.96.0.20:80
klog: "Service changed" service="shop/db-token" err="no endpoint" service=shop/my-secret
service: db-password
portName: http`
	if files, _ := write(t, Options{}, text("a.txt", harmless, nil)); files["a.txt"] != harmless {
		t.Errorf("became\n%s", files["a.txt"])
	}
}

// TestKeyWithoutEnd: of a private key whose first or last line was cut off, nothing is left; of what is
// far from it, all.
func TestKeyWithoutEnd(t *testing.T) {
	far := strings.Repeat("far away\n", maxKey/8)
	for _, c := range []struct {
		text string
		keys int
	}{
		{far + "-----BEGIN PRIVATE KEY-----\nplanted\n" + far, 1},
		{far + "planted\n-----END PRIVATE KEY-----\n" + far, 1},
		{far + "planted\n-----END PRIVATE KEY-----\n-----BEGIN PRIVATE KEY-----\nplanted", 2},
		{"planted\n-----END PRIVATE KEY-----\nplanted\n-----END PRIVATE KEY-----\n" + far, 2},
		{"-----BEGIN PRIVATE KEY-----\nplanted\n-----BEGIN PRIVATE KEY-----\nplanted\n-----END PRIVATE KEY-----\n" + far, 2},
	} {
		clean, keys, err := withoutSecrets(t.Context(), []byte(c.text))
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(clean, []byte("planted")) || keys != c.keys || bytes.Count(clean, []byte("far away")) < 300 {
			t.Errorf("%d removed of %d bytes, %d left", keys, len(c.text), len(clean))
		}
	}
}

// TestTail: the end of a log is kept, from the beginning of a line.
func TestTail(t *testing.T) {
	if got := string(tail([]byte("one\ntwo\nthree\n"), 8)); got != "three\n" {
		t.Errorf("got %q", got)
	}
}
