package kube

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/beeline-lb/beeline/pkg/event"
	"github.com/beeline-lb/beeline/pkg/model"
)

const (
	// controller is who events are from.
	controller = "beeline-agent"
	// maxQueuedEvents is how many events wait for the API server; further ones are
	// lost.
	maxQueuedEvents = 128
	// maxNote is the longest note that the API server takes, in bytes.
	maxNote = 1024
	// eventRetry is how long to wait before an event is sent again.
	eventRetry = 10 * time.Second
)

// recorder makes events of the group events.k8s.io.
//
// client-go has one that also counts repeated events. It brings the generated
// clientset with it, which makes the agent half as large again, in memory and on
// disk; Beeline tells of a failure once.
type recorder struct {
	client rest.Interface
	node   string
	queue  chan *eventsv1.Event
}

func newRecorder(client rest.Interface, node string) *recorder {
	return &recorder{client: client, node: node, queue: make(chan *eventsv1.Event, maxQueuedEvents)}
}

// record queues an event.
func (r *recorder) record(e event.Event) {
	select {
	case r.queue <- r.object(e, time.Now()):
	default:
		klog.InfoS("Too many events wait for the API server, one is lost", "reason", e.Reason, "note", e.Note)
	}
}

func (r *recorder) object(e event.Event, now time.Time) *eventsv1.Event {
	about := corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: r.node}
	namespace := metav1.NamespaceDefault
	if e.Service != (model.Name{}) {
		namespace = e.Service.Namespace
		about = corev1.ObjectReference{APIVersion: "v1", Kind: "Service", Namespace: namespace, Name: e.Service.Name}
	}
	return &eventsv1.Event{
		ObjectMeta:          metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("%s.%x", about.Name, now.UnixNano())},
		EventTime:           metav1.NewMicroTime(now),
		ReportingController: controller,
		ReportingInstance:   controller + "-" + r.node,
		Action:              e.Action,
		Reason:              e.Reason,
		Regarding:           about,
		Note:                e.Note[:min(len(e.Note), maxNote)],
		Type:                string(e.Type),
	}
}

// run sends what is queued until ctx ends. An event waits while the server is away;
// one that the server refuses is lost.
func (r *recorder) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case e := <-r.queue:
			r.send(ctx, e)
		}
	}
}

func (r *recorder) send(ctx context.Context, e *eventsv1.Event) {
	for {
		err := r.client.Post().Namespace(e.Namespace).Resource("events").Body(e).Do(ctx).Error()
		// It exists when only the answer of an earlier attempt was lost.
		if err == nil || ctx.Err() != nil || apierrors.IsAlreadyExists(err) {
			return
		}
		if code := apierrors.ReasonForError(err); code != metav1.StatusReasonUnknown && !apierrors.IsTooManyRequests(err) {
			klog.ErrorS(err, "Event refused", "reason", e.Reason, "regarding", e.Regarding.Name, "namespace", e.Namespace)
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(eventRetry):
		}
	}
}
