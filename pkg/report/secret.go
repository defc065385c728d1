package report

import (
	"bytes"
	"regexp"
)

// removed stands in place of a secret.
const removed = "[removed]"

// The names by which secrets go, and what is between such a name and its value. A flag begins a word, as a
// Service with such a name does not, and its value is on the same line, unless both are strings of a list.
const (
	secretName = `(?:token|passwo?r?d|secret|api[_-]?key|key-data)`
	secretIs   = secretName + `\\*["']?\s*[:=]\s*`
	flagName   = `(?:^|[^a-z0-9_.-]|\\[nrt])--?[a-z0-9_.-]*` + secretName
	secretFlag = flagName + `(?:["']?|,)[ \t]+`
	secretItem = flagName + `\\*["'],\s*`
)

// A value without quotes: what other patterns have removed is none. And the end of a string in a list: after
// a key of an object there is a colon.
const (
	secretValue = `[^\s\\"'\[{,;](?:[^\s"']*[^\s"',;})\]])?`
	itemEnds    = `\s*(?:[^\s:]|$)`
)

// secrets are what looks like a secret, wherever it is, with what remains of it. No part reads
// secrets on purpose: what is logged, or written into an address of the configuration, may have one.
var secrets = []struct {
	pattern *regexp.Regexp
	with    string
}{
	{regexp.MustCompile(`\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.?[A-Za-z0-9_-]*`), removed}, // JSON Web Token (RFC 7519)
	{regexp.MustCompile(`(?i)(authorization["']?\s*[:=]\s*["']?[a-z]+\s+)[^\s"',;\[]+`), "${1}" + removed},
	{regexp.MustCompile(`(?i)\b(bearer\s+)[A-Za-z0-9._~+/=-]{8,}`), "${1}" + removed},
	// To the last @ before a path, for who forgets to escape @, # or ? in a password.
	{regexp.MustCompile(`(://)[^/\s"'<>]+@`), "${1}" + removed + "@"},
	// In quotes that are quoted, in quotes of which the end may have been cut off, and without.
	{regexp.MustCompile(`(?i)(` + secretIs + `|` + secretFlag + `)\\+"[^"\\]+`), `${1}\"` + removed},
	{regexp.MustCompile(`(?im)(` + secretIs + `|` + secretFlag + `)"(?:[^"\\\n]|\\.)+("|$)`), `${1}"` + removed + "${2}"},
	{regexp.MustCompile(`(?im)(` + secretIs + `|` + secretFlag + `)'(?:[^'\\\n]|\\.)+('|$)`), `${1}'` + removed + "${2}"},
	{regexp.MustCompile(`(?i)(` + secretIs + `|` + secretFlag + `)` + secretValue), "${1}" + removed},
	{regexp.MustCompile(`(?im)(` + secretItem + `)\\+"[^"\\]+(\\+"` + itemEnds + `|$)`), `${1}\"` + removed + "${2}"},
	{regexp.MustCompile(`(?im)(` + secretItem + `)"(?:[^"\\\n]|\\.)+("` + itemEnds + `|$)`), `${1}"` + removed + "${2}"},
	{regexp.MustCompile(`(?im)(` + secretItem + `)'(?:[^'\\\n]|\\.)+('` + itemEnds + `|$)`), `${1}'` + removed + "${2}"},
}

// withoutSecrets returns a text without what looks like a secret, and how many of them it had.
func withoutSecrets(text []byte) (clean []byte, count int) {
	text, count = withoutKeys(text)
	for _, s := range secrets {
		if n := len(s.pattern.FindAllIndex(text, -1)); n > 0 {
			text, count = s.pattern.ReplaceAll(text, []byte(s.with)), count+n
		}
	}
	return text, count
}

// keyMark is the first or last line of a private key (PEM, RFC 7468).
var keyMark = regexp.MustCompile(`-----(BEGIN|END) [A-Z0-9 ]*PRIVATE KEY-----`)

// maxKey is how long a private key is at most, with a prefix before each of its lines, as logs have.
const maxKey = 32 << 10

// maxSecret is how long what is removed in one piece is at most, with what says that it is a secret.
const maxSecret = maxKey + 1<<10

// withoutKeys returns a text without private keys, and how many of them it had. All between the first
// and the last line of one goes; where one of these is missing, so much as a key may have.
func withoutKeys(text []byte) (clean []byte, count int) {
	marks := keyMark.FindAllSubmatchIndex(text, -1)
	if len(marks) == 0 {
		return text, 0
	}
	var out bytes.Buffer
	done := 0 // bytes of text that are in out, or left out
	drop := func(from, to int) {
		out.Write(text[done:max(from, done)])
		out.WriteString(removed)
		done, count = to, count+1
	}
	for i, m := range marks {
		switch text[m[2]] {
		case 'B':
			to := min(len(text), m[1]+maxKey)
			if i+1 < len(marks) {
				if next := marks[i+1]; text[next[2]] == 'E' || next[0] < to {
					to = next[0]
				}
			}
			drop(m[1], to)
		case 'E':
			if i == 0 || text[marks[i-1][2]] == 'E' {
				drop(m[0]-maxKey, m[0])
			}
		}
	}
	out.Write(text[done:])
	return out.Bytes(), count
}
