package kube

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/beeline-lb/beeline/pkg/event"
	"github.com/beeline-lb/beeline/pkg/model"
)

const (
	// controller is who events are from.
	controller = "beeline-agent"
	// maxWaitingEvents is how many events wait to be sent. Of more, some of the namespace that has
	// most are lost: others on each node.
	maxWaitingEvents = 1024
	// maxRecorded is how many events are remembered.
	maxRecorded = 1024
	// maxNote is the longest note that the API server takes, in bytes.
	maxNote = 1024
	// maxEventSubject is how much of an object's name begins that of its event.
	maxEventSubject = 200
	// eventRetry is how long to wait for a server that is away.
	eventRetry = 10 * time.Second
	// eventLife is how long the API server keeps an event, unless it is configured otherwise.
	eventLife = time.Hour
	// leastEventPause is how long nothing is sent about Services after an event that was there. It
	// doubles with each in a row.
	leastEventPause = time.Second
	// defaultEventSpread is the time over which the nodes of a cluster send an event.
	defaultEventSpread = time.Minute
)

// recorder makes events of the group events.k8s.io.
//
// What is wrong with a Service all nodes see at once. Each has the same name for it, so the
// first one's event is there when the others come to make it, each after a random part of
// spread. The node that has made an event counts repetitions in it; the others
// say nothing. A node that finds one event after the other asks less and less often, down to once
// in spread: in a large cluster the others make them.
//
// client-go has a recorder that makes an event for each node. It brings the generated
// clientset with it, which makes the agent half as large again, in memory and on disk.
type recorder struct {
	client rest.Interface
	node   string
	spread time.Duration
	wait   func(bool)                 // told whether events about Services wait
	uidOf  func(model.Name) types.UID // of a Service; "" is unknown
	wake   chan struct{}

	mu       sync.Mutex
	waiting  map[string]map[string]*message // by namespace, "" for those about the node; by subject
	count    int                            // how many they are
	recorded map[string]*recorded           // by namespace and name
	retry    time.Time                      // until when the server is taken to be away
	quiet    time.Time                      // until when nothing is sent about Services
	pause    time.Duration                  // how long that was the last time
	full     bool                           // more were to wait than may
}

// message is an event that waits to be sent.
type message struct {
	namespace, subject string
	object             *eventsv1.Event
	due                time.Time
}

// recorded is an event that the API server has.
type recorded struct {
	at    time.Time // when it was made, or seen to be there
	made  bool      // by this agent, which counts in it
	count int32     // how often it has happened
}

func newRecorder(client rest.Interface, node string, spread time.Duration, wait func(bool)) *recorder {
	if spread == 0 {
		spread = defaultEventSpread
	}
	if wait == nil {
		wait = func(bool) {}
	}
	return &recorder{
		client: client, node: node, spread: spread, wait: wait, wake: make(chan struct{}, 1),
		uidOf:   func(model.Name) types.UID { return "" },
		waiting: make(map[string]map[string]*message), recorded: make(map[string]*recorded),
	}
}

// record has an event sent, or counted, unless the API server has it from another node. It takes the
// place of one about the same that still waits.
func (r *recorder) record(e event.Event) {
	now := time.Now()
	object := r.object(e, now)
	key := keyOf(object)
	r.mu.Lock()
	defer r.mu.Unlock()
	if known := r.recorded[key]; known != nil && now.Sub(known.at) >= eventLife {
		delete(r.recorded, key)
	} else if known != nil {
		if known.count++; !known.made {
			return
		}
	}
	m := &message{namespace: e.Service.Namespace, subject: object.Name, object: object, due: now}
	if e.Service != (model.Name{}) {
		m.subject = strings.Join([]string{e.Service.Name, e.Reason, cmp.Or(e.Subject, e.Fault)}, "\x00")
		if r.spread > 0 {
			m.due = now.Add(rand.N(r.spread))
		}
	}
	if same := r.waiting[m.namespace][m.subject]; same != nil {
		same.object = object
		return
	}
	r.makeRoom()
	if r.waiting[m.namespace] == nil {
		r.waiting[m.namespace] = make(map[string]*message)
	}
	r.waiting[m.namespace][m.subject] = m
	r.count++
	r.wait(r.aboutServices())
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// makeRoom drops an event of the namespace that has most where too many wait.
func (r *recorder) makeRoom() {
	if r.count < maxWaitingEvents {
		return
	}
	if !r.full {
		r.full = true
		klog.InfoS("Too many events wait for the API server, some are lost", "waiting", r.count)
	}
	most := ""
	for namespace, list := range r.waiting {
		if len(list) > len(r.waiting[most]) {
			most = namespace
		}
	}
	for _, m := range r.waiting[most] {
		r.drop(m)
		return
	}
}

func (r *recorder) drop(m *message) {
	delete(r.waiting[m.namespace], m.subject)
	if len(r.waiting[m.namespace]) == 0 {
		delete(r.waiting, m.namespace)
	}
	if r.count--; r.count < maxWaitingEvents/2 {
		r.full = false
	}
	r.wait(r.aboutServices())
}

// aboutServices reports whether an event about a Service waits.
func (r *recorder) aboutServices() bool { return r.count > len(r.waiting[""]) }

func (r *recorder) object(e event.Event, now time.Time) *eventsv1.Event {
	about := corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: r.node}
	namespace, fault := metav1.NamespaceDefault, fmt.Sprint(now.UnixNano())
	if e.Service != (model.Name{}) {
		namespace, fault = e.Service.Namespace, e.Fault
		about = corev1.ObjectReference{APIVersion: "v1", Kind: "Service", Namespace: namespace, Name: e.Service.Name}
		if e.Reason != event.FailedServiceHealthCheck { // kube-proxy's has none
			about.UID = r.uidOf(e.Service)
		}
	}
	return &eventsv1.Event{
		ObjectMeta:          metav1.ObjectMeta{Namespace: namespace, Name: eventName(about, e.Reason, fault)},
		EventTime:           metav1.NewMicroTime(now),
		ReportingController: controller,
		ReportingInstance:   strings.ToValidUTF8((controller + "-" + r.node)[:min(len(controller)+1+len(r.node), 128)], ""),
		Action:              e.Action,
		Reason:              e.Reason,
		Regarding:           about,
		Note:                strings.ToValidUTF8(e.Note[:min(len(e.Note), maxNote)], ""),
		Type:                string(e.Type),
	}
}

// eventName returns the name of the event about a fault of an object, the same on all nodes.
func eventName(about corev1.ObjectReference, reason, fault string) string {
	sum := sha256.Sum256([]byte(strings.Join([]string{reason, fault, string(about.UID)}, "\x00")))
	subject := strings.TrimRight(about.Name[:min(len(about.Name), maxEventSubject)], ".-")
	return fmt.Sprintf("%s.%x", subject, sum[:8])
}

func keyOf(e *eventsv1.Event) string { return e.Namespace + "/" + e.Name }

// run sends what waits until ctx ends. An event waits while the server is away; one that
// the server rejects is lost.
func (r *recorder) run(ctx context.Context) {
	defer r.stop()
	for {
		next, wait := r.next(time.Now())
		if next != nil {
			object := next.object
			err := r.send(ctx, object)
			if ctx.Err() != nil {
				return
			}
			r.settle(next, object, err)
			continue
		}
		var due <-chan time.Time
		if wait > 0 {
			due = time.After(wait)
		}
		select {
		case <-ctx.Done():
			return
		case <-r.wake:
		case <-due:
		}
	}
}

// stop has nobody told any more whether events wait.
func (r *recorder) stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.wait = func(bool) {}
}

// next returns a message that is due, of any of the namespaces that have one, else how long to wait
// for one; 0 is that none waits.
func (r *recorder) next(now time.Time) (*message, time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var soonest time.Time
	for namespace, list := range r.waiting { // in random order
		var first *message
		for _, m := range list {
			if first == nil || m.due.Before(first.due) {
				first = m
			}
		}
		due := latest(first.due, r.retry)
		if namespace != "" {
			due = latest(due, r.quiet)
		}
		if !due.After(now) {
			return first, 0
		}
		if soonest.IsZero() || due.Before(soonest) {
			soonest = due
		}
	}
	if soonest.IsZero() {
		return nil, 0
	}
	return nil, soonest.Sub(now)
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// send makes the event, or counts in it.
func (r *recorder) send(ctx context.Context, object *eventsv1.Event) error {
	r.mu.Lock()
	known := r.recorded[keyOf(object)]
	counts, count := known != nil && known.made, int32(0)
	if counts {
		count = known.count
	}
	r.mu.Unlock()
	if !counts {
		return r.client.Post().Namespace(object.Namespace).Resource("events").Body(object).Do(ctx).Error()
	}
	patch, err := json.Marshal(map[string]any{"series": eventsv1.EventSeries{Count: count, LastObservedTime: metav1.NowMicro()}})
	if err != nil {
		return err
	}
	return r.client.Patch(types.MergePatchType).Namespace(object.Namespace).Resource("events").Name(object.Name).
		Body(patch).Do(ctx).Error()
}

// settle records the outcome of a message: it is sent again when the server was away or
// the event, which was there, is not any more.
func (r *recorder) settle(m *message, sent *eventsv1.Event, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now, key := time.Now(), keyOf(sent)
	known := r.recorded[key]
	if apierrors.IsNotFound(err) && known != nil {
		delete(r.recorded, key)
		return
	}
	if isAway(err) {
		r.retry = now.Add(eventRetry)
		return
	}
	if r.waiting[m.namespace][m.subject] == m {
		if m.object == sent {
			r.drop(m)
		} else if r.spread > 0 { // another one has taken its place since
			m.due = now.Add(rand.N(r.spread))
		}
	}
	found := apierrors.IsAlreadyExists(err)
	switch {
	case err == nil && known != nil && known.made: // counted
	case err == nil, found:
		if len(r.recorded) >= maxRecorded {
			clear(r.recorded)
		}
		r.recorded[key] = &recorded{at: now, made: err == nil, count: 1}
	default:
		klog.ErrorS(err, "Event rejected", "reason", sent.Reason, "regarding", sent.Regarding.Name, "namespace", sent.Namespace)
	}
	if m.namespace != "" {
		r.rest(now, found)
	}
}

// rest sets how long nothing is sent about Services after an event that was there, or not.
func (r *recorder) rest(now time.Time, found bool) {
	if !found {
		r.pause = 0
		return
	}
	r.pause = min(max(2*r.pause, leastEventPause), max(r.spread, 0))
	r.quiet = now.Add(r.pause)
}

// isAway reports whether a request that failed may do better later.
func isAway(err error) bool {
	if err == nil {
		return false
	}
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return true
	}
	switch code := status.Status().Code; code {
	case http.StatusUnauthorized, http.StatusRequestTimeout, http.StatusTooManyRequests:
		return true
	default:
		return code == 0 || code >= http.StatusInternalServerError
	}
}
