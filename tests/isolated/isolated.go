// Package isolated makes the environment of programs in a network namespace. It depends on no other
// package of Beeline: tests and tools of any package can use it.
package isolated

import (
	"os"
	"slices"
	"strings"
)

// removed are the variables of the machine's proxies, which no namespace reaches, of folders beside
// HOME with the user's settings, and of the user's language.
var removed = []string{
	"http_proxy", "https_proxy", "ftp_proxy", "all_proxy", "no_proxy", "XDG_CONFIG_HOME", "CURL_HOME", "NETRC", "LANGUAGE",
}

// Environ returns this process's environment without proxies, and without a home, where ~/.curlrc and
// ~/.digrc name others. Programs say in English what tests look for.
func Environ() []string {
	kept := slices.DeleteFunc(os.Environ(), func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		return slices.ContainsFunc(removed, func(r string) bool { return strings.EqualFold(name, r) })
	})
	return append(kept, "HOME=/nonexistent", "LC_ALL=C.UTF-8") // the home of Debian's nobody
}
