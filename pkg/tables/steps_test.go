package tables

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/beeline-lb/beeline/pkg/model"
)

// TestSteps: steps rise by an eighth to a quarter, and the last one is more than a Service can ask for.
func TestSteps(t *testing.T) {
	for n := range lastStep {
		this, next := step(n), step(n+1)
		if next <= this || this >= 8 && (next-this)*8 < next || stepDown(this) != this || stepDown(next-1) != this {
			t.Errorf("step %d is %d, the next one %d, that below which %d", n, this, next, stepDown(next-1))
		}
	}
	if last := step(lastStep); last <= math.MaxUint32 || stepDown(math.MaxUint32) != step(lastStep-1) {
		t.Errorf("the last step is %d", last)
	}
}

// TestShareSteps: what is shared out fits, is no more than is asked for, is equal but for a step, and
// leaves no room for another step. One more, and a little less room, takes something from few, and gives
// nobody more.
func TestShareSteps(t *testing.T) {
	const most = 20
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	for range 3000 {
		asked := make([]uint64, 1+r.IntN(300))
		large := 1 + r.Uint64N(1<<(4+r.IntN(20)))
		for i := range asked {
			switch r.IntN(3) {
			case 0:
				asked[i] = large
			case 1:
				asked[i] = large/2 + r.Uint64N(large)
			case 2:
				asked[i] = r.Uint64N(2 * large)
			}
		}
		room := r.Uint64N(sumOf(asked) + 1)
		given := shareSteps(asked, room)
		if left := room - sumOf(given); sumOf(given) > room || left > large && !slices.Equal(given, asked) {
			t.Fatalf("seed %d: of %d is given %d to %d", seed, room, given, asked)
		}
		level := slices.Max(given)
		for i := range given {
			if given[i] > asked[i] || given[i] < asked[i] && given[i] < level/2 {
				t.Fatalf("seed %d: %d is given to one that asks for %d, %d to another", seed, given[i], asked[i], level)
			}
		}
		compare := func(what string, now []uint64, taken uint64) {
			changed, less := 0, taken
			for i := range given {
				if now[i] > given[i] {
					t.Fatalf("seed %d: %s: %d is given to one that has had %d", seed, what, now[i], given[i])
				}
				if now[i] < given[i] {
					changed++
				}
			}
			if least := max(level/16, 1); uint64(changed) > 2+less/least && changed > most {
				t.Fatalf("seed %d: %s takes %d, and %d of %d get less, of %d at most", seed, what, taken, changed, len(given), level)
			}
		}
		more := shareSteps(slices.Concat(asked, []uint64{large}), room)
		compare("one more", more[:len(asked)], more[len(asked)])
		compare("less room", shareSteps(asked, room-min(room, 1)), 1)
	}
}

func sumOf(list []uint64) (sum uint64) {
	for _, n := range list {
		sum += n
	}
	return sum
}

// TestQuotaChanges: of a namespace that asks for more than its part, and of others that do, few Services
// get something else when a Service comes or goes, or asks for a little more, wherever that is.
func TestQuotaChanges(t *testing.T) {
	const most = 20
	limits := Limits{
		Services: Limit{Size: 1 << 14}, Frontends: Limit{Size: 1 << 14}, Backends: Limit{Size: 1 << 16},
		SourceRanges: Limit{Size: 1 << 13}, Slots: Limit{Size: 1 << 20},
	}
	wide := Demand{100, 200, 3000, 40}
	tables := New(limited{limits: limits})
	name := func(namespace string, i int) model.Name {
		return model.Name{Namespace: namespace, Name: fmt.Sprint("s-", i)}
	}
	tables.Want(model.Name{Namespace: "shop", Name: "web"}, &Desired{}, Demand{1, 2, 3, 0})
	count := 0
	change := func(what string, name model.Name, d *Desired, demand Demand) {
		t.Helper()
		tables.Want(name, d, demand)
		changed, less := tables.Share()
		if len(changed) > most || len(less) > most {
			t.Errorf("%s: %d Services get something else, %d less", what, len(changed), len(less))
		}
		count += len(changed)
	}
	for i := range 300 {
		change("a Service comes", name("wide", i), &Desired{}, wide)
	}
	for i := range 60 {
		change("a Service of another namespace comes", name("other", i), &Desired{}, Demand{1, 2, 270, 0})
	}
	for i := range uint32(200) { // which passes a quarter of the table
		change("one asks for more", name("other", 0), &Desired{}, Demand{1, 2, 270 + i, 0})
	}
	for i := range 300 {
		change("a Service goes", name("wide", i), nil, Demand{})
	}
	if count < 300 {
		t.Errorf("only %d times a Service got something else", count)
	}
}
