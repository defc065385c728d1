package config

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	logsapi "k8s.io/component-base/logs/api/v1"
	_ "k8s.io/component-base/logs/json/register" // the format json
)

// setServers sets what the servers listen on.
func (s *Settings) setServers(kubeProxy, beeline *field.Path) field.ErrorList {
	var errs field.ErrorList
	set := func(path *field.Path, value string, to *string) {
		addr, err := listenAddress(value)
		if err != nil {
			errs = append(errs, field.Invalid(path, value, err.Error()))
		}
		*to = addr
	}
	set(kubeProxy.Child("healthzBindAddress"), s.KubeProxy.HealthzBindAddress, &s.HealthzAddress)
	set(kubeProxy.Child("metricsBindAddress"), s.KubeProxy.MetricsBindAddress, &s.MetricsAddress)
	if s.Beeline.WebBindAddress != "" {
		set(beeline.Child("webBindAddress"), s.Beeline.WebBindAddress, &s.WebAddress)
	}
	return errs
}

// listenAddress returns what to listen on: nothing for port 0.
func listenAddress(value string) (string, error) {
	host, port, err := net.SplitHostPort(value)
	if err != nil {
		return "", fmt.Errorf("must be an IP and a port, such as 0.0.0.0:10256 or [::]:10256")
	}
	if _, err := netip.ParseAddr(host); err != nil {
		return "", fmt.Errorf("must begin with an IP, which %q is not", host)
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return "", fmt.Errorf("must end with a port from 1 to 65535, or 0 for no server")
	}
	if n == 0 {
		return "", nil
	}
	return value, nil
}

// setPeriods sets what happens how often.
func (s *Settings) setPeriods(kubeProxy *field.Path) field.ErrorList {
	var errs field.ErrorList
	section := s.section()
	s.SyncPeriod, s.MinSyncPeriod, s.MasqueradeAll = section.syncPeriod.Duration, section.minSyncPeriod.Duration, *section.masqueradeAll
	path := kubeProxy.Child(section.name)
	if s.SyncPeriod <= 0 {
		errs = append(errs, field.Invalid(path.Child("syncPeriod"), s.SyncPeriod.String(), "must be more than 0"))
	}
	if s.MinSyncPeriod < 0 || s.MinSyncPeriod > s.SyncPeriod {
		errs = append(errs, field.Invalid(path.Child("minSyncPeriod"), s.MinSyncPeriod.String(),
			fmt.Sprintf("must be from 0 to syncPeriod, which is %s", s.SyncPeriod)))
	}
	if d := s.KubeProxy.ConfigSyncPeriod.Duration; d <= 0 {
		errs = append(errs, field.Invalid(kubeProxy.Child("configSyncPeriod"), d.String(), "must be more than 0"))
	}
	return errs
}

// checkKubeProxy checks the fields that are used as they are.
func checkKubeProxy(k *KubeProxyConfiguration, path *field.Path) field.ErrorList {
	errs := logsapi.Validate(&k.Logging, nil, path.Child("logging"))
	client := path.Child("clientConnection")
	if k.ClientConnection.Burst < 0 {
		errs = append(errs, field.Invalid(client.Child("burst"), k.ClientConnection.Burst, "must be 0 or more"))
	}
	if t := k.ClientConnection.ContentType; t != runtime.ContentTypeProtobuf && t != runtime.ContentTypeJSON {
		errs = append(errs, field.NotSupported(client.Child("contentType"), t, []string{runtime.ContentTypeProtobuf, runtime.ContentTypeJSON}))
	}
	if k.Mode != "" && k.Mode != "iptables" && k.Mode != "ipvs" && k.Mode != "nftables" {
		errs = append(errs, field.NotSupported(path.Child("mode"), k.Mode, []proxyMode{"iptables", "ipvs", "nftables"}))
	}
	inRange := func(p *field.Path, v *int32, low, high int32) {
		if *v < low || *v > high {
			errs = append(errs, field.Invalid(p, *v, fmt.Sprintf("must be from %d to %d", low, high)))
		}
	}
	inRange(path.Child("oomScoreAdj"), k.OOMScoreAdj, -1000, 1000)
	inRange(path.Child("iptables", "masqueradeBit"), k.IPTables.MasqueradeBit, 0, 31)
	inRange(path.Child("nftables", "masqueradeBit"), k.NFTables.MasqueradeBit, 0, 31)
	inRange(path.Child("conntrack", "maxPerCore"), k.Conntrack.MaxPerCore, 0, 1<<30)
	inRange(path.Child("conntrack", "min"), k.Conntrack.Min, 0, 1<<30)
	return errs
}
