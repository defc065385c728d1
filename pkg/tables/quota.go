package tables

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"

	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/policy"
)

// What Services ask for follows from their objects alone, and what each gets follows from
// what all ask for at a time: as with slots, neither from the order in which they came nor
// from what is in the tables. So the same Services get less on each node, and after a restart.
//
// One Service gets an eighth of a table at most. The last eighth is left to namespaces that ask for
// little: these need not wait until the large ones have given something up. As long as all that is asked for
// fits beside what is kept of that eighth, a namespace gets what its Services ask for. Beyond that,
// namespaces get equal parts unless one asks for less.

// resource is a table that grows with what Services ask for. The numbers are in the pinned
// tables, see [Cut].
type resource uint8

const (
	ofPorts resource = iota // each family counted
	ofFrontends
	ofBackends // of all ports
	ofSourceRanges
	resources // how many there are
)

// Cut has a bit for each table of which a Service gets less than it asks for. The zero Cut is
// that of a Service which gets all.
type Cut uint8

// Lost returns what becomes of the Service, a sentence for each table.
func (c Cut) Lost() (list []string) {
	for of := range resources {
		if c&(1<<of) != 0 {
			list = append(list, lost[of])
		}
	}
	return list
}

// Demand are the entries that a Service asks for, on any node.
type Demand [resources]uint32

// unlimited is more than any Service asks for.
var unlimited = Demand{math.MaxUint32, math.MaxUint32, math.MaxUint32, math.MaxUint32}

// DemandOf returns the demand of a Service with these slices.
func DemandOf(svc *model.Service, list []*model.Slice) Demand {
	var joined [len(model.Families)]policy.Joined
	for i, family := range model.Families {
		joined[i] = policy.Join(svc, family, list)
	}
	return demand(svc, &joined)
}

// demand returns the demand of a Service whose ports are joined with its slices, by family.
func demand(svc *model.Service, joined *[len(model.Families)]policy.Joined) Demand {
	var asked [resources]int
	for i, family := range model.Families {
		if !svc.HasFamily(family) {
			continue
		}
		addrs := 0
		for _, list := range [][]netip.Addr{svc.ClusterIPs, svc.ExternalIPs, svc.LoadBalancerIPs} {
			for _, a := range list {
				if model.FamilyOf(a) == family {
					addrs++
				}
			}
		}
		ranges, _ := policy.SourceRanges(svc, family)
		asked[ofPorts] += len(svc.Ports)
		asked[ofFrontends] += addrs * (len(svc.Ports) + 1) // one is the address itself
		asked[ofSourceRanges] += len(ranges) * len(svc.Ports)
		for number := range svc.Ports {
			if svc.Ports[number].NodePort != 0 {
				asked[ofFrontends]++
			}
			asked[ofBackends] += joined[i].Listed(number)
		}
	}
	var d Demand
	for of, n := range asked {
		d[of] = uint32(min(n, math.MaxUint32))
	}
	return d
}

// The parts of a table that one Service gets at most, that is left to namespaces which ask
// for little, and below which a namespace asks for little.
const (
	servicePart   = 8
	reservedPart  = 8
	namespacePart = 4
)

// serviceLeast is the least bound of a Service, in entries of a small table.
const serviceLeast = 1024

// quota shares out one table.
type quota struct {
	Limit
	// whole says that a Service gets all that it asks for or nothing.
	whole bool
	// sums are what the Services of a namespace ask for, each within its bound; all is
	// their sum.
	sums map[string]uint64
	all  uint64
	// short are the namespaces that the last Share gave less, and what they got.
	short map[string]uint64
}

func newQuotas(l *Limits) (q [resources]quota) {
	for of, limit := range [resources]Limit{l.Services, l.Frontends, l.Backends, l.SourceRanges} {
		q[of] = quota{Limit: limit, whole: resource(of) == ofSourceRanges, sums: make(map[string]uint64)}
	}
	return q
}

// service returns what one Service gets at most.
func (q *quota) service() uint32 { return min(q.Size, max(q.Size/servicePart, serviceLeast)) }

// bounded returns the part of a Service's demand that it gets when there is room for all.
func (q *quota) bounded(want uint32) uint32 {
	if q.whole && want > q.service() {
		return 0
	}
	return min(want, q.service())
}

// move notes that a Service of a namespace asks for something else.
func (q *quota) move(namespace string, before, next uint32) {
	more := uint64(q.bounded(next)) - uint64(q.bounded(before))
	q.all += more
	q.sums[namespace] += more
	if q.sums[namespace] == 0 {
		delete(q.sums, namespace)
	}
}

// parts returns what the namespaces get that do not get all that they ask for.
func (q *quota) parts() map[string]uint64 {
	room := uint64(q.Size) - q.reserved()
	if q.all <= room {
		return nil
	}
	most := level(slices.Collect(maps.Values(q.sums)), room)
	parts := make(map[string]uint64)
	for name, sum := range q.sums {
		if sum > most {
			parts[name] = most
		}
	}
	return parts
}

// reserved returns what is left to namespaces that ask for little, beside what those that do use of it:
// one that asks for more uses less, so that an entry more or less changes the parts by as much.
func (q *quota) reserved() uint64 {
	size := uint64(q.Size)
	reserved := size / reservedPart
	for _, sum := range q.sums {
		reserved -= min(reserved, sum, max(sum, size/namespacePart)-sum)
	}
	return reserved
}

// level returns the most that each may get where together they get no more than room, and ask for more.
func level(asked []uint64, room uint64) uint64 {
	slices.Sort(asked)
	for i, a := range asked {
		part := room / uint64(len(asked)-i)
		if a > part {
			return part
		}
		room -= a
	}
	return room
}

// shareTables shares out the tables. It returns the Services that get something else than
// before although they ask for the same, and of all Services those that get less.
func (r *room) shareTables() (changed, less map[model.Name]struct{}) {
	changed, less = make(map[model.Name]struct{}), make(map[model.Name]struct{})
	for name := range r.touched {
		if r.ask(name) == nil {
			less[name] = struct{}{}
		}
	}
	if len(r.touched) == 0 {
		return changed, less
	}
	for of := range resources {
		q := &r.quotas[of]
		give := func(name model.Name, a *ask, given uint32) {
			if given < a.given[of] {
				less[name] = struct{}{}
			}
			if _, asked := r.touched[name]; !asked && given != a.given[of] {
				changed[name] = struct{}{}
			}
			a.given[of] = given
		}
		before := q.short
		q.short = q.parts()
		for name := range r.touched {
			if _, short := q.short[name.Namespace]; short {
				continue
			}
			if a := r.ask(name); a != nil {
				give(name, a, q.bounded(a.want[of]))
			}
		}
		for namespace := range before {
			if _, short := q.short[namespace]; short {
				continue
			}
			for name, a := range r.asks[namespace] {
				give(name, a, q.bounded(a.want[of]))
			}
		}
		for namespace, part := range q.short {
			asks := r.asks[namespace]
			given := r.sharePart(of, asks, part)
			for name, a := range asks {
				give(name, a, given[name])
			}
		}
	}
	return changed, less
}

// sum returns how much of a table is shared out.
func (r *room) sum(of resource) (sum uint64) {
	for _, asks := range r.asks {
		for _, a := range asks {
			sum += uint64(a.given[of])
		}
	}
	return sum
}

// sharePart shares out what a namespace gets of a table among its Services: equal parts, to a step,
// unless one asks for less, or, where each gets all or nothing, as many as there is room for.
func (r *room) sharePart(of resource, asks map[model.Name]*ask, part uint64) map[model.Name]uint32 {
	q := &r.quotas[of]
	bounded := func(name model.Name) uint64 { return uint64(q.bounded(asks[name].want[of])) }
	names := slices.Collect(maps.Keys(asks))
	given := make(map[model.Name]uint32, len(names))
	if q.whole {
		slices.SortFunc(names, func(a, b model.Name) int {
			return cmp.Or(cmp.Compare(bounded(a), bounded(b)), a.Compare(b))
		})
		for _, name := range names {
			if want := bounded(name); want <= part {
				given[name] = uint32(want)
				part -= want
			}
		}
		return given
	}
	slices.SortFunc(names, model.Name.Compare)
	asked := make([]uint64, len(names))
	for i, name := range names {
		asked[i] = bounded(name)
	}
	for i, n := range shareSteps(asked, part) {
		given[names[i]] = uint32(n)
	}
	return given
}

// less records what a Service has less of than it asks for, and returns it.
func (r *room) less(a *ask, d *Desired) (faults []model.Fault) {
	var all Cut
	for of := range resources {
		given := a.given[of]
		if given == a.want[of] {
			continue
		}
		all |= 1 << of
		faults = append(faults, model.Fault{Reason: r.quotas[of].reason(of, a.want[of], given), Partly: true})
	}
	for i := range d.Ports {
		d.Ports[i].Name.Cut = all
	}
	return faults
}

// lost says what becomes of a Service that gets less.
var lost = [resources]string{
	ofPorts:        "not all of its ports are served",
	ofFrontends:    "not all of its addresses are served on all of its ports",
	ofBackends:     "not all of its endpoints are used",
	ofSourceRanges: "its load-balancer IPs admit no client, for a part of its loadBalancerSourceRanges would be another rule",
}

// reason has no numbers that change with each endpoint.
func (q *quota) reason(of resource, want, given uint32) string {
	if given == q.bounded(want) {
		return fmt.Sprintf("%s: a Service gets %d at most, for %s is %d", lost[of], q.service(), q.Setting, q.Size)
	}
	return fmt.Sprintf("%s: what all Services ask for is beyond %s %d, and namespaces that ask for much get equal parts",
		lost[of], q.Setting, q.Size)
}

// Compile is [Compile] with no more of each table than the Service has a share of, and never more than
// any Service gets: its objects may have changed since [Tables.Want].
func (t *Tables) Compile(svc *model.Service, slices []*model.Slice, node *model.LocalNode) Desired {
	given := t.room.mostOfOne()
	if a := t.room.ask(svc.Name); a != nil {
		for of := range given {
			if a.given[of] < a.want[of] {
				given[of] = a.given[of]
			}
		}
	}
	return compile(svc, slices, node, given)
}

// CompileAsk is [Compile] with no more of each table than any Service gets, for [Tables.Want].
func (t *Tables) CompileAsk(svc *model.Service, slices []*model.Slice, node *model.LocalNode) Desired {
	return compile(svc, slices, node, t.room.mostOfOne())
}

// mostOfOne returns what one Service gets at most.
func (r *room) mostOfOne() (most Demand) {
	for of := range resources {
		most[of] = r.quotas[of].service()
	}
	return most
}

// backendsEach returns how many backends each port of a Service, which asks for more than most, may
// have.
func backendsEach(svc *model.Service, joined *[len(model.Families)]policy.Joined, most uint64) uint64 {
	var listed []uint64
	for i, family := range model.Families {
		if !svc.HasFamily(family) {
			continue
		}
		for number := range svc.Ports {
			listed = append(listed, uint64(joined[i].Listed(number)))
		}
	}
	return level(listed, most)
}
