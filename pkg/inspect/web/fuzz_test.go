package web

import (
	"net/url"
	"testing"

	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/tests/bounds"
)

// FuzzQuestion: whatever a browser asks for, it is refused or answered with a page of the list, and what
// the page asks for next is the same question.
func FuzzQuestion(f *testing.F) {
	for _, query := range []string{
		"", "sort=connections&filter=we&offset=25&service=shop/web", "sort=size", "offset=-1", "offset=9223372036854775807", "offset=1e3",
		"service=web", "service=/", "service=a/b/c", "filter=%00%ff&filter=x", "sort=&offset=&service=",
	} {
		f.Add(query)
	}
	f.Fuzz(func(t *testing.T, query string) {
		values, _ := url.ParseQuery(query) // what it could not read is left out, as net/http does
		var q question
		var err error
		bounds.Check(t, len(query), func() { q, err = parseQuestion(values) })
		if err != nil {
			return
		}
		if q.offset < 0 || (q.service != model.Name{}) != (values.Get("service") != "" && values.Get("service") != "/") {
			t.Fatalf("%q is taken for %+v", query, q)
		}
		again := url.Values{"sort": {string(q.order)}, "filter": {q.filter}, "offset": {values.Get("offset")}}
		if values.Get("service") != "" {
			again.Set("service", q.service.Namespace+"/"+q.service.Name)
		}
		if got, err := parseQuestion(again); err != nil || got != q {
			t.Fatalf("%+v becomes %+v, %v", q, got, err)
		}
	})
}
