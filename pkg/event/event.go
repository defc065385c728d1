// Package event defines the Kubernetes events that the agent records, beside its log.
package event

import "github.com/beeline-lb/beeline/pkg/model"

// Type is the API's type of an event.
type Type string

// The types.
const (
	Normal  Type = "Normal"
	Warning Type = "Warning"
)

// Reasons of events, as kube-proxy has them.
const (
	Starting                  = "Starting"
	FailedServiceHealthCheck  = "FailedToStartServiceHealthcheck"
	FailedProxierHealthServer = "FailedToStartProxierHealthcheck"
	FailedMetricsServer       = "FailedToStartMetricServer"
)

// FailedWebServer is the reason of an event about the address of the web page.
const FailedWebServer = "FailedToStartWebServer"

// InvalidSetting is the reason of an event about an annotation that cannot be used.
const InvalidSetting = "InvalidSetting"

// EndpointEjected is the reason of an event about a Service of whose endpoints one fails.
const EndpointEjected = "EndpointEjected"

// Event is something that has happened to a Service, or to the node.
type Event struct {
	// Service is whom the event is about; zero is the node.
	Service model.Name
	Type    Type
	// Reason is one word why, Action one word what was being done.
	Reason, Action string
	// Fault is the fault of the Service, in the same words on every node: all events
	// of one reason and fault are one object.
	Fault string
	// Subject is what the fault is of, such as an annotation: an event that waits to be sent is
	// replaced by one of the same reason and subject. Empty: the fault itself.
	Subject string
	// Note is a sentence for people.
	Note string
}

// Recorder takes events. It does not block.
type Recorder func(Event)

// Discard takes events where there is no cluster to tell.
func Discard(Event) {}
