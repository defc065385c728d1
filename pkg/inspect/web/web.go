// Package web is the page that shows in a browser what beeline top shows at a terminal.
//
// The maps are read only while somebody asks, once an interval for all who ask, and meanwhile events
// of connections that begin, or are refused or dropped, are listened to. Nothing of an answer grows with the
// number of Services: of each list it has the first entries in the order asked for, and how many there
// are.
package web

import (
	"encoding/json"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/beeline-lb/beeline/pkg/inspect"
)

// Options configure the page.
type Options struct {
	// Read reads the maps. It is called once at a time.
	Read func() (*inspect.Sample, error)
	// Listen begins to listen to events: to refusals, and to new connections. It is called while somebody
	// looks; the listeners are ended when nobody has for two intervals.
	Listen func(inspect.EventOptions) (Listener, error)
	// Interval is the least time from one reading to the next.
	Interval time.Duration
}

// Page is the page and what it asks for. It answers GET alone, and changes nothing but that it
// listens.
type Page struct {
	http.Handler
	reader *reader
}

// Close ends listening. The page still answers, without new events.
func (p *Page) Close() { p.reader.close() }

// New returns the page, to be closed when it is no longer served.
func New(o Options) *Page {
	r := newReader(o)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", servePage)
	mux.HandleFunc("GET /top", r.serve)
	return &Page{guarded(mux, &r.budget), r}
}

// guarded refuses requests by a name that anybody could have in the DNS (rebinding): a script of
// another site would read the page through the browser of who visits it. It refuses those that a browser
// sends for another site, too: each would have the maps read and events listened to. Answers are for no
// other site, in no frame, and kept by nobody. All of them, refusals too, are of the budget.
func guarded(next http.Handler, budget *budget) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !budget.take(r.Context()) {
			return // the client has gone
		}
		if !safeHost(r.Host) {
			http.Error(w, "ask by IP address or as localhost", http.StatusMisdirectedRequest)
			return
		}
		if crossSite(r) && !followsLink(r) {
			http.Error(w, "not for another site", http.StatusForbidden)
			return
		}
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cache-Control", "no-store")
		next.ServeHTTP(w, r)
	})
}

// crossSite reports whether a browser has said that it asks for another site: by Fetch Metadata, which
// it sends to 127.0.0.1, localhost and by HTTPS alone, or by the Origin of a script.
func crossSite(r *http.Request) bool {
	switch r.Header.Get("Sec-Fetch-Site") {
	case "", "none", "same-origin":
	default:
		return true
	}
	origin := r.Header.Get("Origin")
	return origin != "" && !strings.EqualFold(origin, "http://"+r.Host) && !strings.EqualFold(origin, "https://"+r.Host)
}

// followsLink reports whether somebody opens the page by a link of another site. The page alone has
// nothing read; what it asks for is then asked for by itself.
func followsLink(r *http.Request) bool {
	return r.URL.Path == "/" && r.Header.Get("Sec-Fetch-Mode") == "navigate" && r.Header.Get("Sec-Fetch-Dest") == "document"
}

// safeHost reports whether a host, with or without port, is an IP address or localhost.
func safeHost(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	_, err := netip.ParseAddr(host)
	return err == nil || strings.EqualFold(host, "localhost")
}

// serve answers a question about the latest reading.
func (r *reader) serve(w http.ResponseWriter, req *http.Request) {
	q, err := parseQuestion(req.URL.Query())
	if err != nil {
		writeError(w, http.StatusBadRequest, err)
		return
	}
	body, err := r.answer(q)
	if err != nil {
		writeError(w, http.StatusServiceUnavailable, err)
		return
	}
	writeJSON(w, http.StatusOK, body)
}

func writeError(w http.ResponseWriter, status int, err error) {
	body, _ := json.Marshal(map[string]string{"error": err.Error()}) // strings have no error
	writeJSON(w, status, body)
}

func writeJSON(w http.ResponseWriter, status int, body []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(body) // the client has gone when this fails
}
