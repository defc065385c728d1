package report

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/beeline-lb/beeline/pkg/netns"
	"github.com/beeline-lb/beeline/tests/bounds"
	"github.com/beeline-lb/beeline/tests/tier"
	"github.com/beeline-lb/beeline/tests/wait"
)

// everywhere returns what withoutSecrets does, by patterns that go through all of the text.
func everywhere() func(text []byte) (clean []byte, count int) {
	var patterns []*regexp.Regexp
	var with [][]byte
	for _, s := range secrets {
		for _, r := range s.rules {
			patterns, with = append(patterns, regexp.MustCompile(r.pattern)), append(with, []byte(r.with))
		}
	}
	return func(text []byte) (clean []byte, count int) {
		clean, count = withoutKeys(text)
		for i, p := range patterns {
			count += len(p.FindAllIndex(clean, -1))
			clean = p.ReplaceAll(clean, with[i])
		}
		return clean, count
	}
}

// pieces are what secrets are made of, and what is around them.
var pieces = []string{
	"token", "Token", "passwd", "PASSWORD", "secret", "api-key", "api_key", "apiKey", "client-key-data", "authorization", "Bearer", "eyJ",
	"eyJhbGciOiJS.eyJzdWIiOiJw", "://", "https://me:planted@192.0.2.1/", "-----BEGIN PRIVATE KEY-----", "-----END PRIVATE KEY-----",
	"--", "-", "--db-", "_", ".", "=", ":", ",", "\"", "\\\"", "'", "\\", "\\n", "\n", " ", "\t", "@", "/", "[", "]", "{", "}", ";",
	"planted", "planted0123456789", "Basic", "x", "é", "\xe9", "[removed]",
}

// TestSecretsAnywhere: looking only at places with a name of a secret finds what a search of the whole text does.
func TestSecretsAnywhere(t *testing.T) {
	whole := everywhere()
	for seed := range uint64(1000) {
		random := rand.New(rand.NewPCG(seed, 0))
		var b bytes.Buffer
		for range 1 + random.IntN(40) {
			b.WriteString(pieces[random.IntN(len(pieces))])
		}
		want, wantCount := whole(b.Bytes())
		got, count, err := withoutSecrets(t.Context(), b.Bytes())
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) || count != wantCount {
			t.Fatalf("%q became\n%q with %d removed, want\n%q with %d", &b, got, count, want, wantCount)
		}
	}
}

// TestSecretsOfTables: what a large cluster's tables take is far below the time for a report, be it that many
// Services are named like secrets.
func TestSecretsOfTables(t *testing.T) {
	tier.OneGoroutine(t)
	const service = `  {
    "namespace": "team-%[1]d",
    "service": "%[2]s-%[1]d",
    "portName": "http",
    "address": "10.0.%[3]d.%[4]d",
    "sets": [
      "cluster"
    ]
  },
`
	const planted = "token=planted\n"
	for name, limit := range map[string]time.Duration{"web": time.Second, "my-secret": 3 * time.Second} {
		var text bytes.Buffer
		for i := 0; text.Len() < 4<<20; i++ {
			fmt.Fprintf(&text, service, i, name, i>>8&0xff, i&0xff)
		}
		text.WriteString(planted)
		bounds.Within(t, limit, 32<<20, func() {
			clean, count, err := withoutSecrets(t.Context(), text.Bytes())
			if err != nil || count != 1 || len(clean) != text.Len()-len("planted")+len(removed) {
				t.Errorf("%d removed of %d bytes, %d left: %v", count, text.Len(), len(clean), err)
			}
		})
	}
}

// TestSecretsInTime: of a part that could not be searched in time nothing is written, and the index says why.
func TestSecretsInTime(t *testing.T) {
	caller, err := netns.Current()
	if err != nil {
		t.Fatal(err)
	}
	defer caller.Close()
	var out bytes.Buffer
	a := &archive{Options: Options{part: wait.Limit, maxPart: maxPart, maxTotal: maxTotal}, to: tar.NewWriter(&out), caller: caller}
	ended, end := context.WithCancel(t.Context())
	end()
	if err := a.add(t.Context(), ended, text("a.txt", "token=planted", errors.New("token=planted"))); err != nil {
		t.Fatal(err)
	}
	index := string(a.index())
	if out.Len() > 0 || !strings.Contains(index, "FAILED: token=[removed] given up: removing what looks like a secret took too long") {
		t.Errorf("written are %q, the index is\n%s", &out, index)
	}
}
