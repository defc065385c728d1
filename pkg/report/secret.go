package report

import "regexp"

// removed stands in place of a secret.
const removed = "[removed]"

// secrets are what looks like a secret, wherever it is, with what remains of it. No part reads
// secrets on purpose: what is logged, or written into an address of the configuration, may have one.
var secrets = []struct {
	pattern *regexp.Regexp
	with    string
}{
	{regexp.MustCompile(`(-----BEGIN [A-Z ]*PRIVATE KEY-----)[^-]*(-----END [A-Z ]*PRIVATE KEY-----)?`), "${1}" + removed},
	{regexp.MustCompile(`\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.?[A-Za-z0-9_-]*`), removed}, // JSON Web Token (RFC 7519)
	{regexp.MustCompile(`(?i)(authorization["']?\s*[:=]\s*["']?[a-z]+\s+)[^\s"',;\[]+`), "${1}" + removed},
	{regexp.MustCompile(`(?i)\b(bearer\s+)[A-Za-z0-9._~+/=-]{8,}`), "${1}" + removed},
	{regexp.MustCompile(`(://)[^/\s@"'<>]+@`), "${1}" + removed + "@"},
	{regexp.MustCompile(`(?i)((?:token|passwo?r?d|secret|api[_-]?key|key-data)["']?\s*[:=]\s*["']?)[^\s"',;\[{]+`), "${1}" + removed},
}

// withoutSecrets returns a text without what looks like a secret, and how many of them it had.
func withoutSecrets(text []byte) (clean []byte, count int) {
	for _, s := range secrets {
		if n := len(s.pattern.FindAllIndex(text, -1)); n > 0 {
			text, count = s.pattern.ReplaceAll(text, []byte(s.with)), count+n
		}
	}
	return text, count
}
