package file

import (
	"github.com/beeline-lb/beeline/pkg/yamldoc"
)

// refusal is why a content cannot be served beside others, and which field of it is the reason.
type refusal struct {
	object       *object
	path, reason string
}

// places returns refusals as faults, the first [yamldoc.MaxFaults] of them with lines, which
// text tells. None has a line when there is no text.
func places(refusals []refusal, text []byte) []*yamldoc.Fault {
	faults := make([]*yamldoc.Fault, len(refusals))
	wanted := map[int]map[string][]int{} // which refusals, by document and path of the item
	for i, r := range refusals {
		document, item := r.object.document, yamldoc.Below(r.object.root, "")
		faults[i] = &yamldoc.Fault{Document: document, Path: yamldoc.Below(r.object.root, r.path), Reason: r.reason}
		if i >= yamldoc.MaxFaults {
			continue
		}
		if wanted[document] == nil {
			wanted[document] = map[string][]int{}
		}
		wanted[document][item] = append(wanted[document][item], i)
	}
	if text == nil {
		return faults
	}
	yamldoc.Each(text, func(d *yamldoc.Document) bool {
		byItem := wanted[d.Number]
		delete(wanted, d.Number)
		place := func(d *yamldoc.Document) bool {
			item := yamldoc.Below(d.Path, "")
			for _, i := range byItem[item] {
				faults[i] = d.FaultAt(faults[i].Path, faults[i].Reason)
			}
			delete(byItem, item)
			return len(byItem) > 0
		}
		if len(byItem) > 0 && place(d) {
			d.Items(place)
		}
		return len(wanted) > 0
	})
	return faults
}
