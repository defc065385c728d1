package cli

import (
	"fmt"
	"testing"

	"github.com/beeline-lb/beeline/pkg/verify"
)

// TestSameFindings: checks that differ in what the short text leaves out differ.
func TestSameFindings(t *testing.T) {
	report := func() *verify.Report {
		r := &verify.Report{Unchecked: []verify.Unchecked{{Part: "tables", Reason: "no source"}}}
		for i := range 2 * mostOfAKind {
			r.Findings = append(r.Findings, verify.Finding{Part: "tables", Kind: "service", Service: fmt.Sprintf("shop/s-%d", i), What: fmt.Sprintf("finding %d", i)})
			r.Unsettled = append(r.Unsettled, fmt.Sprintf("shop/u-%d", i))
		}
		return r
	}
	if !sameFindings(report(), report()) {
		t.Error("the same findings are others")
	}
	for name, change := range map[string]func(r *verify.Report){
		"a finding that is not shown":     func(r *verify.Report) { r.Findings[mostOfAKind+1].What = "another" },
		"whether an agent runs":           func(r *verify.Report) { r.Agent = true },
		"the Service of one":              func(r *verify.Report) { r.Findings[0].Service = "shop/other" },
		"a Service that is not judged":    func(r *verify.Report) { r.Unsettled[mostOfAKind+1] = "shop/other" },
		"why something cannot be checked": func(r *verify.Report) { r.Unchecked[0].Reason = "another" },
	} {
		r := report()
		if change(r); sameFindings(r, report()) {
			t.Errorf("%s has changed, and the findings are the same", name)
		}
	}
}
