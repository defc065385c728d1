package kube

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"math/rand/v2"
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
	// maxWaitingEvents is how many events wait to be sent; further ones are lost.
	maxWaitingEvents = 128
	// maxRecorded is how many events are remembered.
	maxRecorded = 1024
	// maxNote is the longest note that the API server takes, in bytes.
	maxNote = 1024
	// maxEventSubject is how much of an object's name begins that of its event.
	maxEventSubject = 200
	// eventRetry is how long to wait before an event is sent again.
	eventRetry = 10 * time.Second
	// eventLife is how long the API server keeps an event, unless it is configured otherwise.
	eventLife = time.Hour
	// defaultEventSpread is the time over which the nodes of a cluster send an event.
	defaultEventSpread = time.Minute
)

// recorder makes events of the group events.k8s.io.
//
// What is wrong with a Service all nodes see at once. Each has the same name for it, so the
// first one's event is there when the others come to make it, each after a random part of
// spread. The node that has made an event counts repetitions in it; the others
// say nothing.
//
// client-go has a recorder that makes an event for each node. It brings the generated
// clientset with it, which makes the agent half as large again, in memory and on disk.
type recorder struct {
	client rest.Interface
	node   string
	spread time.Duration
	wake   chan struct{}

	mu       sync.Mutex
	waiting  map[string]*message // by namespace and name
	recorded map[string]*recorded
}

// message is an event that waits to be sent.
type message struct {
	object *eventsv1.Event
	due    time.Time
}

// recorded is an event that the API server has.
type recorded struct {
	at    time.Time // when it was made, or seen to be there
	made  bool      // by this agent, which counts in it
	count int32     // how often it has happened
}

func newRecorder(client rest.Interface, node string, spread time.Duration) *recorder {
	if spread == 0 {
		spread = defaultEventSpread
	}
	return &recorder{
		client: client, node: node, spread: spread, wake: make(chan struct{}, 1),
		waiting: make(map[string]*message), recorded: make(map[string]*recorded),
	}
}

// record has an event sent, or counted, unless the API server has it from another node.
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
	if r.waiting[key] != nil {
		return
	}
	if len(r.waiting) >= maxWaitingEvents {
		klog.InfoS("Too many events wait for the API server, one is lost", "reason", e.Reason, "note", e.Note)
		return
	}
	m := &message{object: object, due: now}
	if object.Regarding.Kind == "Service" && r.spread > 0 {
		m.due = now.Add(rand.N(r.spread))
	}
	r.waiting[key] = m
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

func (r *recorder) object(e event.Event, now time.Time) *eventsv1.Event {
	about := corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: r.node}
	namespace, fault := metav1.NamespaceDefault, fmt.Sprint(now.UnixNano())
	if e.Service != (model.Name{}) {
		namespace, fault = e.Service.Namespace, e.Fault
		about = corev1.ObjectReference{APIVersion: "v1", Kind: "Service", Namespace: namespace, Name: e.Service.Name}
	}
	return &eventsv1.Event{
		ObjectMeta:          metav1.ObjectMeta{Namespace: namespace, Name: eventName(about.Name, e.Reason, fault)},
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
func eventName(subject, reason, fault string) string {
	sum := sha256.Sum256([]byte(reason + "\x00" + fault))
	subject = strings.TrimRight(subject[:min(len(subject), maxEventSubject)], ".-")
	return fmt.Sprintf("%s.%x", subject, sum[:8])
}

func keyOf(e *eventsv1.Event) string { return e.Namespace + "/" + e.Name }

// run sends what waits until ctx ends. An event waits while the server is away; one that
// the server rejects is lost.
func (r *recorder) run(ctx context.Context) {
	for {
		next, wait := r.next(time.Now())
		if next != nil {
			r.settle(next, r.send(ctx, next))
			if ctx.Err() != nil {
				return
			}
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

// next returns the first message that is due, else how long to wait for one; 0 is that none
// waits.
func (r *recorder) next(now time.Time) (*message, time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var first *message
	for _, m := range r.waiting {
		if first == nil || m.due.Before(first.due) {
			first = m
		}
	}
	switch {
	case first == nil:
		return nil, 0
	case first.due.After(now):
		return nil, first.due.Sub(now)
	}
	return first, 0
}

// send makes the event, or counts in it.
func (r *recorder) send(ctx context.Context, m *message) error {
	r.mu.Lock()
	known := r.recorded[keyOf(m.object)]
	counts, count := known != nil && known.made, int32(0)
	if counts {
		count = known.count
	}
	r.mu.Unlock()
	if !counts {
		return r.client.Post().Namespace(m.object.Namespace).Resource("events").Body(m.object).Do(ctx).Error()
	}
	patch, err := json.Marshal(map[string]any{"series": eventsv1.EventSeries{Count: count, LastObservedTime: metav1.NowMicro()}})
	if err != nil {
		return err
	}
	return r.client.Patch(types.MergePatchType).Namespace(m.object.Namespace).Resource("events").Name(m.object.Name).
		Body(patch).Do(ctx).Error()
}

// settle records the outcome of a message: it is sent again when the server was away or
// the event, which was there, is not any more.
func (r *recorder) settle(m *message, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	key := keyOf(m.object)
	known := r.recorded[key]
	switch {
	case err == nil && known != nil && known.made: // counted
		delete(r.waiting, key)
	case err == nil, apierrors.IsAlreadyExists(err):
		delete(r.waiting, key)
		if len(r.recorded) >= maxRecorded {
			clear(r.recorded)
		}
		r.recorded[key] = &recorded{at: time.Now(), made: err == nil, count: 1}
	case apierrors.IsNotFound(err) && known != nil:
		delete(r.recorded, key)
	case apierrors.IsTooManyRequests(err), apierrors.ReasonForError(err) == metav1.StatusReasonUnknown:
		m.due = time.Now().Add(eventRetry)
	default:
		delete(r.waiting, key)
		klog.ErrorS(err, "Event rejected", "reason", m.object.Reason, "regarding", m.object.Regarding.Name, "namespace", m.object.Namespace)
	}
}
