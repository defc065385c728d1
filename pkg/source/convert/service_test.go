package convert

import (
	"net/netip"
	"reflect"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/beeline-lb/beeline/pkg/model"
)

// clusterService is a plain Service that a case changes one thing of.
func clusterService() *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart"},
		Spec: corev1.ServiceSpec{
			Type:            corev1.ServiceTypeClusterIP,
			ClusterIP:       "10.96.0.10",
			ClusterIPs:      []string{"10.96.0.10"},
			SessionAffinity: corev1.ServiceAffinityNone,
			Ports:           []corev1.ServicePort{{Protocol: corev1.ProtocolTCP, Port: 80}},
		},
	}
}

func clusterModel() *model.Service {
	return &model.Service{
		Name:       model.Name{Namespace: "shop", Name: "cart"},
		Type:       "ClusterIP",
		ClusterIPs: addrs("10.96.0.10"),
		Ports:      []model.ServicePort{{Protocol: model.TCP, Port: 80}},
	}
}

func addrs(list ...string) []netip.Addr {
	var out []netip.Addr
	for _, s := range list {
		out = append(out, netip.MustParseAddr(s))
	}
	return out
}

func prefixes(list ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, s := range list {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

// TestServiceCreated: when it was created is known to the second, in UTC whatever the object says.
func TestServiceCreated(t *testing.T) {
	s, want := clusterService(), clusterModel()
	want.Created = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	s.CreationTimestamp = metav1.NewTime(want.Created.In(time.FixedZone("", 3600)))
	if got := Service(s, Allowed{Annotations: AllAnnotations}); !reflect.DeepEqual(got, want) {
		t.Errorf("Service:\n got %+v\nwant %+v", got, want)
	}
}

func TestServiceNotServed(t *testing.T) {
	for name, edit := range map[string]func(*corev1.Service){
		"headless": func(s *corev1.Service) {
			s.Spec.ClusterIP, s.Spec.ClusterIPs = "None", []string{"None"}
		},
		"headless, clusterIP only": func(s *corev1.Service) {
			s.Spec.ClusterIP, s.Spec.ClusterIPs = "None", nil
		},
		"no clusterIP": func(s *corev1.Service) {
			s.Spec.ClusterIP, s.Spec.ClusterIPs = "", nil
		},
		"ExternalName": func(s *corev1.Service) {
			s.Spec.Type = corev1.ServiceTypeExternalName
		},
		"another proxy's": func(s *corev1.Service) {
			s.Labels = map[string]string{"service.kubernetes.io/service-proxy-name": "other"}
		},
		"another proxy's, empty name": func(s *corev1.Service) {
			s.Labels = map[string]string{"service.kubernetes.io/service-proxy-name": ""}
		},
	} {
		t.Run(name, func(t *testing.T) {
			svc := clusterService()
			edit(svc)
			if got := Service(svc, Allowed{Annotations: AllAnnotations}); got != nil {
				t.Errorf("Service = %+v, want nil", got)
			}
		})
	}
}

type serviceCase struct {
	name string
	edit func(*corev1.Service)
	want func(*model.Service)
}

func runServiceCases(t *testing.T, cases []serviceCase) {
	t.Helper()
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			svc, want := clusterService(), clusterModel()
			c.edit(svc)
			c.want(want)
			before := svc.DeepCopy()
			if got := Service(svc, Allowed{Annotations: AllAnnotations}); !reflect.DeepEqual(got, want) {
				t.Errorf("Service:\n got %+v\nwant %+v", got, want)
			}
			if !reflect.DeepEqual(svc, before) {
				t.Errorf("Service changed its argument to %+v", svc)
			}
		})
	}
}

func TestServiceAddresses(t *testing.T) {
	proxy, vip := corev1.LoadBalancerIPModeProxy, corev1.LoadBalancerIPModeVIP
	runServiceCases(t, []serviceCase{
		{
			"as it is",
			func(*corev1.Service) {},
			func(*model.Service) {},
		}, {
			"clusterIPs missing",
			func(s *corev1.Service) { s.Spec.ClusterIPs = nil },
			func(*model.Service) {},
		}, {
			"clusterIPs without clusterIP",
			func(s *corev1.Service) { s.Spec.ClusterIP = "" },
			func(*model.Service) {},
		}, {
			"IPv6",
			func(s *corev1.Service) { s.Spec.ClusterIP, s.Spec.ClusterIPs = "fd00::a", []string{"fd00::a"} },
			func(m *model.Service) { m.ClusterIPs = addrs("fd00::a") },
		}, {
			"dual stack",
			func(s *corev1.Service) { s.Spec.ClusterIPs = []string{"10.96.0.10", "fd00::a"} },
			func(m *model.Service) { m.ClusterIPs = addrs("10.96.0.10", "fd00::a") },
		}, {
			"externalIPs, invalid ones skipped",
			func(s *corev1.Service) {
				s.Spec.ExternalIPs = []string{"192.0.2.1", "", "host", "fe80::1%eth0", "192.0.2.256", "2001:db8::1"}
			},
			func(m *model.Service) { m.ExternalIPs = addrs("192.0.2.1", "2001:db8::1") },
		}, {
			"leading zeros are decimal, v4-mapped is IPv4",
			func(s *corev1.Service) { s.Spec.ExternalIPs = []string{"192.000.002.010", "::ffff:192.0.2.2"} },
			func(m *model.Service) { m.ExternalIPs = addrs("192.0.2.10", "192.0.2.2") },
		}, {
			"ingress: ipMode nil and VIP, no hostname",
			func(s *corev1.Service) {
				s.Spec.Type = corev1.ServiceTypeLoadBalancer
				s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{
					{IP: "198.51.100.1"},
					{IP: "198.51.100.2", IPMode: &vip},
					{IP: "198.51.100.3", IPMode: &proxy},
					{Hostname: "lb.example.com"},
					{IP: "2001:db8::2", Hostname: "lb.example.com"},
				}
			},
			func(m *model.Service) {
				m.Type = "LoadBalancer"
				m.LoadBalancerIPs = addrs("198.51.100.1", "198.51.100.2", "2001:db8::2")
			},
		}, {
			"addresses that no host has beside others",
			func(s *corev1.Service) {
				s.Spec.Type = corev1.ServiceTypeLoadBalancer
				for _, ip := range []string{
					"127.0.0.1", "127.9.9.9", "::1", "0.0.0.0", "::", "::ffff:127.0.0.1", "224.0.0.1", "ff02::1", "255.255.255.255", "192.0.2.1",
				} {
					s.Spec.ExternalIPs = append(s.Spec.ExternalIPs, ip)
					s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: ip})
				}
			},
			func(m *model.Service) {
				m.Type = "LoadBalancer"
				m.ExternalIPs, m.LoadBalancerIPs = addrs("192.0.2.1"), addrs("192.0.2.1")
			},
		}, {
			"source ranges: trimmed, host bits cleared, unparsable skipped, /0 and both families kept",
			func(s *corev1.Service) {
				s.Spec.LoadBalancerSourceRanges = []string{
					" 10.0.0.0/8\t", "192.0.2.77/24", "10.0.0.1", "", "10.0.0.0/33", "0.0.0.0/0",
					"2001:db8::/32 ", "::ffff:198.51.100.0/120", "::ffff:0:0/96",
				}
			},
			func(m *model.Service) {
				m.SourceRanges = prefixes("10.0.0.0/8", "192.0.2.0/24", "0.0.0.0/0",
					"2001:db8::/32", "198.51.100.0/24", "0.0.0.0/0")
			},
		},
	})
}

// TestNoExternalIPs: they are not served, and the external traffic policy still counts.
func TestNoExternalIPs(t *testing.T) {
	svc, want := clusterService(), clusterModel()
	svc.Spec.ExternalIPs = []string{"192.0.2.1"}
	svc.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	want.ExternalLocal = true
	if got := Service(svc, Allowed{NoExternalIPs: true}); !reflect.DeepEqual(got, want) {
		t.Errorf("Service:\n got %+v\nwant %+v", got, want)
	}
}

func TestServicePorts(t *testing.T) {
	runServiceCases(t, []serviceCase{
		{
			"protocols, default TCP, unknown skipped",
			func(s *corev1.Service) {
				s.Spec.Ports = []corev1.ServicePort{
					{Name: "a", Port: 1},
					{Name: "b", Port: 2, Protocol: corev1.ProtocolUDP},
					{Name: "c", Port: 3, Protocol: corev1.ProtocolSCTP},
					{Name: "d", Port: 4, Protocol: "DCCP"},
				}
			},
			func(m *model.Service) {
				m.Ports = []model.ServicePort{
					{Name: "a", Protocol: model.TCP, Port: 1},
					{Name: "b", Protocol: model.UDP, Port: 2},
					{Name: "c", Protocol: model.SCTP, Port: 3},
				}
			},
		}, {
			"numbers out of range",
			func(s *corev1.Service) {
				s.Spec.Ports = []corev1.ServicePort{
					{Name: "zero", Port: 0},
					{Name: "negative", Port: -1},
					{Name: "wraps to 80", Port: 65536 + 80},
					{Name: "highest", Port: 65535, NodePort: 65536 + 80},
				}
			},
			func(m *model.Service) {
				m.Ports = []model.ServicePort{{Name: "highest", Protocol: model.TCP, Port: 65535}}
			},
		}, {
			"load balancer with and without nodePort",
			func(s *corev1.Service) {
				s.Spec.Type = corev1.ServiceTypeLoadBalancer
				s.Spec.Ports = []corev1.ServicePort{{Name: "a", Port: 1, NodePort: 30001}, {Name: "b", Port: 2}}
			},
			func(m *model.Service) {
				m.Type = "LoadBalancer"
				m.Ports = []model.ServicePort{
					{Name: "a", Protocol: model.TCP, Port: 1, NodePort: 30001},
					{Name: "b", Protocol: model.TCP, Port: 2},
				}
			},
		},
	})
}

func TestServicePolicies(t *testing.T) {
	internal := func(p corev1.ServiceInternalTrafficPolicy) func(*corev1.Service) {
		return func(s *corev1.Service) { s.Spec.InternalTrafficPolicy = &p }
	}
	external := func(typ corev1.ServiceType, p corev1.ServiceExternalTrafficPolicy) func(*corev1.Service) {
		return func(s *corev1.Service) { s.Spec.Type, s.Spec.ExternalTrafficPolicy = typ, p }
	}
	runServiceCases(t, []serviceCase{
		{
			"internal Cluster",
			internal(corev1.ServiceInternalTrafficPolicyCluster),
			func(*model.Service) {},
		}, {
			"internal Local",
			internal(corev1.ServiceInternalTrafficPolicyLocal),
			func(m *model.Service) { m.InternalLocal = true },
		}, {
			"external Local without anything external",
			external(corev1.ServiceTypeClusterIP, corev1.ServiceExternalTrafficPolicyLocal),
			func(*model.Service) {},
		}, {
			"external Local with externalIPs",
			func(s *corev1.Service) {
				s.Spec.ExternalIPs = []string{"192.0.2.1"}
				s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
			},
			func(m *model.Service) { m.ExternalIPs, m.ExternalLocal = addrs("192.0.2.1"), true },
		}, {
			"external Local, NodePort",
			external(corev1.ServiceTypeNodePort, corev1.ServiceExternalTrafficPolicyLocal),
			func(m *model.Service) { m.Type, m.ExternalLocal = "NodePort", true },
		}, {
			"external Local, LoadBalancer",
			external(corev1.ServiceTypeLoadBalancer, corev1.ServiceExternalTrafficPolicyLocal),
			func(m *model.Service) { m.Type, m.ExternalLocal = "LoadBalancer", true },
		}, {
			"external Cluster, LoadBalancer",
			external(corev1.ServiceTypeLoadBalancer, corev1.ServiceExternalTrafficPolicyCluster),
			func(m *model.Service) { m.Type = "LoadBalancer" },
		},
	})
}

func TestServiceAffinity(t *testing.T) {
	config := func(seconds *int32) *corev1.SessionAffinityConfig {
		return &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: seconds}}
	}
	for _, c := range []struct {
		name     string
		affinity corev1.ServiceAffinity
		config   *corev1.SessionAffinityConfig
		want     uint32
	}{
		{"none", corev1.ServiceAffinityNone, nil, 0},
		{"empty", "", nil, 0},
		{"none, time-out left over", corev1.ServiceAffinityNone, config(new(int32(30))), 0},
		{"no config", corev1.ServiceAffinityClientIP, nil, 10800},
		{"no client IP config", corev1.ServiceAffinityClientIP, &corev1.SessionAffinityConfig{}, 10800},
		{"no time-out", corev1.ServiceAffinityClientIP, config(nil), 10800},
		{"shortest", corev1.ServiceAffinityClientIP, config(new(int32(1))), 1},
		{"longest", corev1.ServiceAffinityClientIP, config(new(int32(86400))), 86400},
		{"zero", corev1.ServiceAffinityClientIP, config(new(int32(0))), 10800},
		{"negative", corev1.ServiceAffinityClientIP, config(new(int32(-1))), 10800},
		{"too long", corev1.ServiceAffinityClientIP, config(new(int32(86401))), 10800},
	} {
		t.Run(c.name, func(t *testing.T) {
			svc := clusterService()
			svc.Spec.SessionAffinity, svc.Spec.SessionAffinityConfig = c.affinity, c.config
			if got := Service(svc, Allowed{Annotations: AllAnnotations}).AffinitySeconds; got != c.want {
				t.Errorf("AffinitySeconds = %d, want %d", got, c.want)
			}
		})
	}
}

func TestHealthCheckPort(t *testing.T) {
	for _, c := range []struct {
		name   string
		kind   corev1.ServiceType
		policy corev1.ServiceExternalTrafficPolicy
		port   int32
		want   uint16
	}{
		{"LoadBalancer, Local", corev1.ServiceTypeLoadBalancer, corev1.ServiceExternalTrafficPolicyLocal, 32000, 32000},
		{"no port is given", corev1.ServiceTypeLoadBalancer, corev1.ServiceExternalTrafficPolicyLocal, 0, 0},
		{"no port number", corev1.ServiceTypeLoadBalancer, corev1.ServiceExternalTrafficPolicyLocal, 65536 + 80, 0},
		{"LoadBalancer, Cluster", corev1.ServiceTypeLoadBalancer, corev1.ServiceExternalTrafficPolicyCluster, 32000, 0},
		{"NodePort, Local", corev1.ServiceTypeNodePort, corev1.ServiceExternalTrafficPolicyLocal, 32000, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := clusterService()
			s.Spec.Type, s.Spec.ExternalTrafficPolicy, s.Spec.HealthCheckNodePort = c.kind, c.policy, c.port
			if got := Service(s, Allowed{Annotations: AllAnnotations}).HealthCheckPort; got != c.want {
				t.Errorf("HealthCheckPort = %d, want %d", got, c.want)
			}
		})
	}
}
