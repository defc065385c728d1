package tunnel

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"github.com/beeline-lb/beeline/pkg/pause"
)

const (
	// secretLeast is how many bytes a secret has at least.
	secretLeast = 16
	// secretsMost is how many secrets are accepted at a time.
	secretsMost = 2
	// secretPeriod is how often the file of secrets is read.
	secretPeriod = 2 * time.Second
)

// Mark is the mark of a secret in tunnel traffic. The zero Mark is that of nodes
// without a secret.
type Mark = [8]byte

// Secret is the secret that the nodes of a cluster share. The zero Secret is none.
type Secret struct{ text string }

// Mark returns what packets carry. The secret cannot be found from it.
func (s Secret) Mark() Mark {
	if s.text == "" {
		return Mark{}
	}
	return Mark(s.sum("packet")[:8])
}

// sum is a message authentication code (RFC 2104, with SHA-256).
func (s Secret) sum(purpose string, parts ...[]byte) []byte {
	h := hmac.New(sha256.New, []byte(s.text))
	h.Write([]byte("beeline tunnel " + purpose + "\x00"))
	for _, part := range parts {
		h.Write(part)
	}
	return h.Sum(nil)
}

// sign returns the code of a message that asks, or is answered by, the node with an address.
func (s Secret) sign(m message, node netip.Addr) (c code) {
	addr := node.As16()
	copy(c[:], s.sum("message", m.head(), addr[:]))
	return c
}

// Secrets are those that a node accepts; the first one is sent. None is the zero Secret.
type Secrets []Secret

// ParseSecrets reads a file of secrets: one a line, of at least 16 bytes.
func ParseSecrets(text []byte) (Secrets, error) {
	var list Secrets
	for line := range bytes.Lines(text) {
		line = bytes.TrimSpace(line)
		if len(line) == 0 {
			continue
		}
		if len(line) < secretLeast {
			return nil, fmt.Errorf("a secret has %d bytes, it must have at least %d", len(line), secretLeast)
		}
		list = append(list, Secret{string(line)})
	}
	if len(list) == 0 || len(list) > secretsMost {
		return nil, fmt.Errorf("there are %d secrets, there must be 1 to %d, each on a line", len(list), secretsMost)
	}
	return list, nil
}

// ReadSecrets is [ParseSecrets] of a file. Without a name there is none.
func ReadSecrets(name string) (Secrets, error) {
	if name == "" {
		return nil, nil
	}
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("read the secrets of the tunnel: %w", err)
	}
	list, err := ParseSecrets(text)
	if err != nil {
		return nil, fmt.Errorf("secrets of the tunnel in %s: %w", name, err)
	}
	return list, nil
}

// FollowSecrets calls tell with the secrets of a file again and again, until ctx ends, and says whether they are
// others than before; known are those at first. A file that cannot be read, or has none, changes nothing. Without
// a name the known ones stay.
func FollowSecrets(ctx context.Context, name string, known Secrets, tell func(list Secrets, changed bool)) {
	told := ""
	for ctx.Err() == nil {
		list, err := ReadSecrets(name)
		switch {
		case err != nil && err.Error() != told:
			klog.ErrorS(err, "Tunnel secrets could not be reloaded, keeping the former ones")
			told = err.Error()
		case err == nil:
			told = ""
		}
		changed := err == nil && !slices.Equal(list, known)
		if changed {
			klog.InfoS("Tunnel secrets reloaded", "file", name, "accepted", len(list))
			known = list
		}
		tell(known, changed)
		pause.For(ctx, secretPeriod)
	}
}

// sent returns the secret that is sent.
func (s Secrets) sent() Secret {
	if len(s) == 0 {
		return Secret{}
	}
	return s[0]
}

// Marks returns the mark that packets are sent with, and those that are accepted.
func (s Secrets) Marks() (sent Mark, accepted []Mark) {
	if len(s) == 0 {
		return Mark{}, []Mark{{}}
	}
	for _, secret := range s {
		accepted = append(accepted, secret.Mark())
	}
	return accepted[0], accepted
}

// verify reports whether a message to or from the node with an address has been signed with one
// of the secrets.
func (s Secrets) verify(m message, node netip.Addr) bool {
	if !m.signed {
		return false
	}
	if len(s) == 0 {
		s = Secrets{{}}
	}
	ok := false
	for _, secret := range s {
		want := secret.sign(m, node)
		ok = hmac.Equal(m.code[:], want[:]) || ok
	}
	return ok
}
