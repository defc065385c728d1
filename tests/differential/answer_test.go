package differential_test

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/beeline-lb/beeline/tests/lab"
	"github.com/beeline-lb/beeline/tests/wait"
)

// answer is what a page says.
type answer struct {
	code   int
	header http.Header
	body   string
	err    error
}

// ask fetches a page from inside a host's namespace.
func ask(h *lab.Host, url string) *answer {
	response, err := h.HTTPClient().Get(url)
	if err != nil {
		return &answer{err: err}
	}
	return read(response)
}

func read(response *http.Response) *answer {
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return &answer{code: response.StatusCode, header: response.Header, body: string(body), err: err}
}

// times are those in bodies; lengths change with them.
var times = regexp.MustCompile(`"\d{4}-\d\d-\d\dT[^"]*"`)

// String returns all of the answer but the Date, and times in the body.
func (a *answer) String() string {
	if a.err != nil {
		return a.err.Error()
	}
	body := times.ReplaceAllString(a.body, `"TIME"`)
	var b strings.Builder
	fmt.Fprintln(&b, a.code)
	for _, name := range slices.Sorted(maps.Keys(a.header)) {
		if name != "Date" && (name != "Content-Length" || body == a.body) {
			fmt.Fprintln(&b, name, a.header[name])
		}
	}
	b.WriteString(body)
	return b.String()
}

// eventuallyBoth waits until both hosts answer as they should.
func (r *rig) eventuallyBoth(what, url string, ok func(*answer) bool) (beeline, kubeProxy *answer) {
	r.t.Helper()
	for deadline := time.Now().Add(wait.Limit); ; time.Sleep(20 * time.Millisecond) {
		beeline, kubeProxy = ask(r.beeline, url), ask(r.kubeProxy, url)
		if ok(beeline) && ok(kubeProxy) {
			return beeline, kubeProxy
		}
		if time.Now().After(deadline) {
			r.t.Fatalf("%s: not so at %s. Beeline:\n%s\nkube-proxy:\n%s", what, url, beeline, kubeProxy)
		}
	}
}

// same waits until both hosts answer as they should and compares the answers.
func (r *rig) same(t *testing.T, what, url string, ok func(*answer) bool) {
	t.Helper()
	beeline, kubeProxy := r.eventuallyBoth(what, url, ok)
	if beeline.String() != kubeProxy.String() {
		t.Errorf("%s, %s: Beeline answers\n%s\nkube-proxy answers\n%s", what, url, beeline, kubeProxy)
	}
}

// says returns what is true of answers with this status and part of the body.
func says(code int, part string) func(*answer) bool {
	return func(a *answer) bool { return a.code == code && strings.Contains(a.body, part) }
}
