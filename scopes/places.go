package scopes

import (
	"regexp"
	"slices"
	"strings"
)

// The places of a credential that templates fill, and what each may contain. Where a value is part of a path, it never
// contains a slash, so it stays within its own segment whatever the admin's pattern allows (H52 to H54).

var (
	segmentValue   = regexp.MustCompile(`^[^/]+$`)
	dnsValue       = regexp.MustCompile(`^[a-z0-9.-]+$`)
	principalValue = regexp.MustCompile(`^[a-z0-9_-]+$`)
	firstSegment   = regexp.MustCompile(`^[A-Za-z0-9._-]+/`)
	labelSyntax    = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)
	allDigits      = regexp.MustCompile(`^[0-9]+$`)
	userSyntax     = regexp.MustCompile(`^[a-z_][a-z0-9_-]{0,63}$`)
)

const maxDNSName = 253

// reserved lists Vault's own paths, for its configuration and its logins. No scope's credential may use them.
var reserved = []string{"sys", "auth", "identity", "cubbyhole"}

const pathHeadWhy = "must begin with the mount path of an engine, without a leading slash, and continue below it, such as secret/data/app"

var (
	pathPlace = place{
		name: "path", literal: regexp.MustCompile(`^[A-Za-z0-9/._-]*$`), chars: "letters, digits and / . _ -",
		head: firstSegment, headWhy: pathHeadWhy, value: segmentValue, whole: refusePath,
	}
	// rulePlace is a path in a policy: + is one whole segment, and * at the end matches any suffix.
	rulePlace = place{
		name: "path", literal: regexp.MustCompile(`^[A-Za-z0-9/._+*-]*$`), chars: "letters, digits and / . _ - + *",
		head: firstSegment, headWhy: pathHeadWhy, value: segmentValue, whole: refuseRule,
	}
	rolePlace = place{
		name: "role", literal: regexp.MustCompile(`^[A-Za-z0-9._-]*$`), chars: "letters, digits and . _ -",
		value: segmentValue, whole: refuseSegments,
	}
	dnsPlace = place{
		name: "DNS name", literal: regexp.MustCompile(`^[a-z0-9.-]*$`), chars: "lower-case letters, digits and . -",
		value: dnsValue, whole: refuseDNS,
	}
	principalPlace = place{
		name: "principal", literal: regexp.MustCompile(`^[a-z0-9_-]*$`), chars: "lower-case letters, digits and _ -",
		value: principalValue, whole: refusePrincipal,
	}
	// dataPlace excludes what another system could take for its own template syntax.
	dataPlace = place{
		name: "text", literal: regexp.MustCompile(`^[ -#%-z|~]*$`), chars: "visible ASCII without { } $",
		whole: func(string) string { return "" },
	}
)

func refuseSegments(path string) string {
	for segment := range strings.SplitSeq(path, "/") {
		if segment == "" || dotSegment(segment) {
			return "has an empty, . or .. segment"
		}
	}
	return ""
}

func refusePath(path string) string {
	if mount, _, _ := strings.Cut(path, "/"); slices.Contains(reserved, mount) {
		return "is below " + mount + "/, which Vault reserves"
	}
	return refuseSegments(path)
}

func refuseRule(path string) string {
	plain := strings.TrimSuffix(strings.TrimSuffix(path, "*"), "/")
	if strings.Contains(plain, "*") {
		return "has a * that is not at the end"
	}
	for segment := range strings.SplitSeq(plain, "/") {
		if strings.Contains(segment, "+") && segment != "+" {
			return "has a + that is not a whole segment"
		}
	}
	if strings.HasSuffix(path, "+*") {
		return "has a * after a +; write /+/*"
	}
	if strings.HasSuffix(path, "/") {
		return "has an empty, . or .. segment"
	}
	return refusePath(plain)
}

// IsDNSName reports whether a name is a DNS name in lower case.
func IsDNSName(name string) bool { return refuseDNS(name) == "" }

func refuseDNS(name string) string {
	if len(name) > maxDNSName {
		return "is longer than 253 bytes"
	}
	labels := strings.Split(name, ".")
	for _, label := range labels {
		if !labelSyntax.MatchString(label) {
			return "has a label that is not 1 to 63 letters, digits and inner dashes"
		}
	}
	// No top-level domain is a number: such a name would be read as an IP address.
	if allDigits.MatchString(labels[len(labels)-1]) {
		return "ends in a number"
	}
	return ""
}

func refusePrincipal(name string) string {
	if !userSyntax.MatchString(name) {
		return "is not a user name: a lower-case letter or _, then letters, digits, _ and -, at most 64"
	}
	return ""
}
