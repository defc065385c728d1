package tunnel

import (
	"bytes"
	"testing"
	"time"

	"github.com/beeline-lb/beeline/pkg/nodemap"
)

// FuzzMessage: what is taken for a message says the same when it is sent again, up to the
// bytes that later versions may use, and an answer is never longer than its question.
func FuzzMessage(f *testing.F) {
	f.Add(message{version: version, kind: kindQuestion, nonce: 0x0102030405060708}.marshal())
	f.Add(message{version: version, kind: kindQuestion, nonce: 5, signed: true, code: code{7: 7}}.marshal())
	f.Add(append(message{version: version, kind: kindAnswer, flags: flagAccepts}.marshal(), 1, 2, 3))
	f.Add(message{version: 255, kind: 255, flags: 255}.marshal()[:messageSize-1])
	f.Fuzz(func(t *testing.T, b []byte) {
		before := bytes.Clone(b)
		m, ok := parse(b)
		if !bytes.Equal(b, before) {
			t.Fatal("the bytes are changed")
		}
		if !ok {
			if m != (message{}) {
				t.Fatalf("what is no message says %+v", m)
			}
			return
		}
		again := m.marshal()
		if len(again) > len(b) {
			t.Fatalf("%d bytes are answered with %d", len(b), len(again))
		}
		if got, ok := parse(again); !ok || got != m {
			t.Fatalf("%+v becomes %+v", m, got)
		}
		wantUnmoved(t, m)
	})
}

// wantUnmoved fails the test if a message that answers no question changes what is known
// of a node.
func wantUnmoved(t *testing.T, m message) {
	t.Helper()
	for _, p := range []peer{
		{id: 1, addr: at(1), answer: nodemap.Accepts, nonce: ^m.nonce, until: time.Now().Add(time.Hour)},
		{id: 1, addr: at(1), answer: nodemap.Accepts, nonce: m.nonce}, // answered before
	} {
		known := nodes{answers: map[uint16]nodemap.Answer{1: nodemap.Accepts, 2: nodemap.Unreachable}}
		prober := New(Options{Nodes: &known})
		now := p
		prober.peers[1] = &now
		prober.heard(1, m)
		prober.heard(2, m)
		if now != p || known.answers[1] != nodemap.Accepts || known.answers[2] != nodemap.Unreachable {
			t.Fatalf("%+v makes %+v of %+v, answers %v", m, now, p, known.answers)
		}
	}
}
