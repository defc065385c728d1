package reconcile_test

import (
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/reconcile"
)

// createdAt says when a Service was created.
func createdAt(seconds int64) func(*model.Service) {
	return func(s *model.Service) { s.Created = time.Unix(seconds, 0) }
}

// external gives a Service an external IP.
func external(addr string) func(*model.Service) {
	return func(s *model.Service) { s.ExternalIPs = append(s.ExternalIPs, netip.MustParseAddr(addr)) }
}

// TestClashAge: in tables that are new, the oldest of the Services that want one address gets it, whatever
// the names; in those of a former agent, the one that has it keeps it.
func TestClashAge(t *testing.T) {
	const address = "192.0.2.1"
	b := service("b", "10.96.0.2", external(address), createdAt(1))
	held := newStore(t)
	t.Run("new", func(t *testing.T) {
		l := start(t, held, asIs, reconcile.Options{})
		l.Apply(put(service("a", "10.96.0.1", external(address), createdAt(2)), slice("a-1", "a", "10.0.0.1"), b, slice("b-1", "b", "10.0.0.2")))
		l.Synced()
		l.eventually(address+":80", "10.0.0.2:8080")
	})
	t.Run("again", func(t *testing.T) {
		l := start(t, held, asIs, reconcile.Options{})
		l.Apply(put(service("a", "10.96.0.1", external(address), createdAt(0)), slice("a-1", "a", "10.0.0.1"), b, slice("b-1", "b", "10.0.0.2")))
		l.Synced()
		l.applied()
		l.eventually(address+":80", "10.0.0.2:8080")
	})
}

// TestClashHandOver: an address that goes is handed to the oldest of the Services that wait for it, and the
// others are not applied for that, nor to try again. They say who has it.
func TestClashHandOver(t *testing.T) {
	const address, waiting = "192.0.2.1", 200
	held := newStore(t)
	synctest.Test(t, func(t *testing.T) {
		var failures sync.Map // by name
		failure := func(name string) *reconcile.Failure {
			f, _ := failures.Load(name)
			failure, _ := f.(*reconcile.Failure)
			return failure
		}
		l := start(t, held, asIs, reconcile.Options{Failed: func(service model.Name, f *reconcile.Failure) { failures.Store(service.Name, f) }})
		owner := service("owner", "10.96.0.1", external(address), createdAt(0))
		l.Apply(put(owner, slice("owner-1", "owner", "10.0.0.1")))
		for i := range waiting {
			name := fmt.Sprint("svc-", i)
			l.Apply(put(service(name, fmt.Sprintf("10.96.1.%d", i), external(address), createdAt(int64(1+waiting-i))), slice(name+"-1", name, fmt.Sprintf("10.1.0.%d", i))))
		}
		l.Synced()
		l.eventually(address+":80", "10.0.0.1:8080")
		synctest.Wait()
		for len(l.syncs) > 0 {
			<-l.syncs
		}
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		for len(l.syncs) > 0 {
			if s := <-l.syncs; s.Services > 0 {
				t.Fatalf("%d Services applied while nothing changes", s.Services)
			}
		}
		owner = service("owner", "10.96.0.1", createdAt(0))
		l.Apply(put(owner))
		if s := l.applied(); s.Services > 1+1 {
			t.Errorf("%d Services applied when an address was handed over, want 2", s.Services)
		}
		next := fmt.Sprint("svc-", waiting-1)
		l.eventually(address+":80", fmt.Sprintf("10.1.0.%d:8080", waiting-1))
		synctest.Wait()
		if f := failure(next); f != nil {
			t.Errorf("the Service that has got the address fails: %+v", f)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if f := failure("svc-0"); f == nil || !strings.Contains(f.Error, "belongs to service default/"+next) || f.Next.Before(time.Now()) {
			t.Errorf("a Service that waits fails for %+v", f)
		}
	})
}

// TestClashSameSync: an address whose owner goes is handed to the oldest of the Services that wait for it, also
// when a younger one comes, or changes, in the same sync.
func TestClashSameSync(t *testing.T) {
	const address = "192.0.2.1"
	for _, waits := range []bool{false, true} {
		l := start(t, newStore(t), asIs, reconcile.Options{})
		young := func(change ...func(*model.Service)) *model.Service {
			return service("young", "10.96.0.3", append(change, external(address), createdAt(3))...)
		}
		l.Apply(put(service("owner", "10.96.0.1", external(address), createdAt(1)), slice("owner-1", "owner", "10.0.0.1"),
			service("waits", "10.96.0.2", external(address), createdAt(2)), slice("waits-1", "waits", "10.0.0.2")))
		if waits {
			l.Apply(put(young(), slice("young-1", "young", "10.0.0.3")))
		}
		l.Synced()
		l.eventually(address+":80", "10.0.0.1:8080")
		u := put(young(balanced), slice("young-1", "young", "10.0.0.3"))
		u.DeleteServices = []model.Name{{Namespace: "default", Name: "owner"}}
		l.Apply(u)
		l.applied()
		l.eventually(address+":80", "10.0.0.2:8080")
	}
}
