package tunnel

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/beeline-lb/beeline/pkg/nodemap"
	"github.com/beeline-lb/beeline/tests/wait"
)

const (
	oldSecret = "the secret until today"
	newSecret = "the secret from tomorrow"
)

func TestParseSecrets(t *testing.T) {
	for text, want := range map[string]int{
		oldSecret: 1,
		"\n " + oldSecret + " \r\n\n" + newSecret + "\n": 2,
		"":                                0,
		" \n":                             0,
		"short":                           0,
		oldSecret + "\nshort":             0,
		strings.Repeat(oldSecret+"\n", 3): 0,
	} {
		list, err := ParseSecrets([]byte(text))
		if len(list) != want || (err == nil) != (want > 0) {
			t.Errorf("%q gives %d secrets, %v", text, len(list), err)
		}
		if err != nil && strings.Contains(err.Error(), "short") {
			t.Errorf("the error of %q tells a secret: %v", text, err)
		}
	}
}

// TestMarks: packets of other secrets differ, and packets without one from all of them.
func TestMarks(t *testing.T) {
	a, b := Secret{oldSecret}, Secret{newSecret}
	if sent, accepted := (Secrets{a, b}).Marks(); sent != a.Mark() || len(accepted) != 2 || accepted[1] != b.Mark() {
		t.Errorf("two secrets: %x is sent, %x accepted", sent, accepted)
	}
	if sent, accepted := Secrets(nil).Marks(); sent != (Mark{}) || len(accepted) != 1 || accepted[0] != (Mark{}) {
		t.Errorf("no secret: %x is sent, %x accepted", sent, accepted)
	}
	if a.Mark() == b.Mark() || a.Mark() == (Mark{}) {
		t.Errorf("the marks are %x and %x", a.Mark(), b.Mark())
	}
}

// TestRotation: nodes of two secrets fall back to SNAT, and one secret after the other can take
// the place of a former without that.
func TestRotation(t *testing.T) {
	before, after := Secret{oldSecret}, Secret{newSecret}
	port := freePort(t)
	a, b := newAgent(t, 1, port), newAgent(t, 2, port)
	both := func(s Secrets) {
		a.SetSecrets(s)
		b.SetSecrets(s)
	}
	both(Secrets{before})
	a.run()
	b.run()
	a.peers(2)
	a.eventually(2, nodemap.Accepts)
	b.SetSecrets(Secrets{after})
	a.eventually(2, nodemap.Refuses)
	b.SetSecrets(nil)
	a.eventually(2, nodemap.Refuses)
	b.SetSecrets(Secrets{before})
	a.eventually(2, nodemap.Accepts)

	b.SetSecrets(Secrets{before, after})
	a.SetSecrets(Secrets{after, before})
	if got := a.Answer(2); got != nodemap.Asked && got != nodemap.Accepts {
		t.Errorf("after another secret is sent, the node %s", got)
	}
	a.eventually(2, nodemap.Accepts)
	b.SetSecrets(Secrets{after})
	a.SetSecrets(Secrets{after})
	for range 2 {
		if got := a.hears(2); got != nodemap.Accepts {
			t.Fatalf("in the end, the node %s", got)
		}
	}
}

// hears waits until a node has answered another question, and returns what it said.
func (a *agent) hears(id uint16) (said nodemap.Answer) {
	a.t.Helper()
	last := func() (nonce uint64, answered bool) {
		a.Prober.mu.Lock()
		defer a.Prober.mu.Unlock()
		p := a.Prober.peers[id]
		said = p.answer
		return p.nonce, p.until.IsZero() && p.missing == 0
	}
	before, _ := last()
	wait.Until(a.t, "an answer to another question", func() bool {
		nonce, answered := last()
		return answered && nonce != before
	})
	return said
}

// TestFollowSecrets: what is written to the file counts, but for what is no secret.
func TestFollowSecrets(t *testing.T) {
	name := filepath.Join(t.TempDir(), "secrets")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(name+".new", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(name+".new", name); err != nil {
			t.Fatal(err)
		}
	}
	write(oldSecret)
	known, err := ReadSecrets(name)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	changes, done := make(chan Secrets, 8), make(chan struct{})
	go func() {
		FollowSecrets(ctx, name, known, func(s Secrets, changed bool) {
			if changed {
				changes <- s
			}
		})
		close(done)
	}()
	defer func() { cancel(); <-done }()
	write("short")
	write(newSecret + "\n" + oldSecret)
	select {
	case got := <-changes:
		if want := (Secrets{{newSecret}, {oldSecret}}); !slices.Equal(got, want) {
			t.Errorf("the secrets are %v, want %v", got, want)
		}
	case <-time.After(wait.Limit):
		t.Fatal("a new secret is not noticed")
	}
}
