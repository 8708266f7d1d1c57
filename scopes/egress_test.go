package scopes_test

import (
	"strings"
	"testing"

	"github.com/brevet-dev/brevet/scopes"
	"github.com/google/go-cmp/cmp"
)

// withRule adds a rule to the mail scope, which has no parameters.
func withRule(rule string) string { return "bind: mtls}\n    egress: [" + rule + "]\n" }

// mailJWT is the credential of the mail scope. withSend replaces it with another one that goes into calls.
const mailJWT = "{kind: jwt, audience: https://mail.example, bind: mtls}\n"

func withSend(send string) string {
	return "{kind: kv, path: secret/data/mail}\n    egress: [{hosts: [mail.example], methods: [GET], paths: [/in]" + send + "}]\n"
}

func withCertificate(send string) string {
	return "{kind: pki, mount: pki, role: web, common_name: mail.example}\n    egress: [{hosts: [mail.example], methods: [GET], paths: [/in]" + send + "}]\n"
}

func withHeaders(headers string) string {
	return withRule("{hosts: [mail.example], methods: [GET], paths: [/in], headers: [" + headers + "]}")
}

// withPermit makes the mail scope one without a credential.
func withPermit(credential, rules string) string { return "{kind: none" + credential + "}\n" + rules }

func withLogins(rule string) string {
	return "{kind: database, mount: database, role: mail}\n    egress: [" + rule + "]\n"
}

var egressMistakes = []mistake{
	{
		name: "egress of another kind", old: "{kind: jwt, audience: https://mail.example, bind: mtls}\n", with: "{kind: ssh, mount: ssh, role: mail, principals: [mail]}\n    egress: [" + mailRule + "]\n",
		want: "scopes.yaml:44: scope mail.read: egress requires a credential that a call can carry, of kind jwt, vault-token, kv, vault, github or pki, a login, of kind database, or no credential, of kind none; remove it",
	},
	{
		name: "no credential without egress", old: mailJWT, with: withPermit("", ""),
		want: "scopes.yaml:38: scope mail.read: egress is missing: a scope with a credential of kind none only opens the hosts of its rules; example: [{hosts: [api.github.com], methods: [GET], paths: ['/repos/{repo}/issues']}]",
	},
	{
		name: "no credential that is sent", old: mailJWT, with: withPermit("", "    egress: [{hosts: [mail.example], methods: [GET], paths: [/in], send: {as: bearer}}]\n"),
		want: "scopes.yaml:44: scope mail.read: egress[0].send cannot be used with a credential of kind none: the gateway adds nothing to a call; remove it",
	},
	{
		name: "no credential with an audience", old: mailJWT, with: withPermit(", audience: 'urn:a'", "    egress: ["+mailRule+"]\n"),
		want: `scopes.yaml:43: scope mail.read: credential of kind none: unknown key "audience"; the keys are kind`,
	},
	{
		name: "no credential bound to a key", old: mailJWT, with: withPermit(", bind: mtls", "    egress: ["+mailRule+"]\n"),
		want: `scopes.yaml:43: scope mail.read: credential of kind none: unknown key "bind"; the keys are kind`,
	},
	{
		name: "no credential for one call", old: mailJWT, with: withPermit(", uses: 1", "    egress: ["+mailRule+"]\n"),
		want: `scopes.yaml:43: scope mail.read: credential of kind none: unknown key "uses"; the keys are kind`,
	},
	{
		name: "no credential at a path", old: mailJWT, with: withPermit(", path: secret/data/mail", "    egress: ["+mailRule+"]\n"),
		want: `scopes.yaml:43: scope mail.read: credential of kind none: unknown key "path"; the keys are kind`,
	},
	{
		name: "no credential within the SVID", old: mailJWT, with: withPermit(", within_svid: true", "    egress: ["+mailRule+"]\n"),
		want: `scopes.yaml:43: scope mail.read: credential of kind none: unknown key "within_svid"; the keys are kind`,
	},
	{
		name: "no credential with a header that carries one", old: mailJWT,
		with: withPermit("", "    egress: [{hosts: [mail.example], methods: [GET], paths: [/in], headers: [authorization]}]\n"),
		want: `scopes.yaml:44: scope mail.read: egress[0].headers[0] "authorization" carries a credential or an identity, or is for proxies and connections, and no gateway forwards it; send says how the credential is sent`,
	},
	{
		name: "egress to a database without a port", old: mailJWT, with: withLogins("{hosts: [db.example], databases: [mail]}"),
		want: `scopes.yaml:44: scope mail.read: egress[0].hosts[0] "db.example" must be one host name with its port, such as db.acme.example:5432`,
	},
	{
		name: "egress to a database on any host", old: mailJWT, with: withLogins("{hosts: ['*.db.example:5432'], databases: [mail]}"),
		want: `scopes.yaml:44: scope mail.read: egress[0].hosts[0] "*.db.example:5432" must be one host name with its port, such as db.acme.example:5432`,
	},
	{
		name: "egress to no database", old: mailJWT, with: withLogins("{hosts: ['db.example:5432']}"),
		want: "scopes.yaml:44: scope mail.read: egress[0].databases is missing; example: {hosts: ['db.acme.example:5432'], databases: [orders]}",
	},
	{
		name: "egress to two databases in one", old: mailJWT, with: withLogins("{hosts: ['db.example:5432'], databases: ['mail host=evil']}"),
		want: `scopes.yaml:44: scope mail.read: egress[0].databases[0] "mail host=evil" must match ^[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}$`,
	},
	{
		name: "egress to a database with a long name", old: mailJWT, with: withLogins("{hosts: ['db.example:5432'], databases: [" + strings.Repeat("a", 64) + "]}"),
		want: `scopes.yaml:44: scope mail.read: egress[0].databases[0] "` + strings.Repeat("a", 64) + `" must match ^[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}$`,
	},
	{
		name: "egress of a key that is not sent", old: mailJWT, with: withSend(""),
		want: "scopes.yaml:44: scope mail.read: egress[0].send is missing: it defines how a credential of kind kv is sent; example: {as: header, name: x-api-key, field: key}",
	},
	{
		name: "egress of a key in no field", old: mailJWT, with: withSend(", send: {as: bearer}"),
		want: "scopes.yaml:44: scope mail.read: egress[0].send.field is missing: it names the member of the credential to send",
	},
	{
		name: "egress by another way", old: mailJWT, with: withSend(", send: {as: cookie, field: key}"),
		want: `scopes.yaml:44: scope mail.read: egress[0].send.as "cookie" is unknown; choose bearer, basic, header, query, aws or certificate`,
	},
	{
		name: "egress by a header without a name", old: mailJWT, with: withSend(", send: {as: header, field: key}"),
		want: "scopes.yaml:44: scope mail.read: egress[0].send with as: header requires name",
	},
	{
		name: "egress as a bearer with a name", old: mailJWT, with: withSend(", send: {as: bearer, name: x-key, field: key}"),
		want: "scopes.yaml:44: scope mail.read: egress[0].send with as: bearer does not take name",
	},
	{
		name: "egress as nobody", old: mailJWT, with: withSend(", send: {as: basic, field: key}"),
		want: "scopes.yaml:44: scope mail.read: egress[0].send with as: basic requires user",
	},
	{
		name: "egress as a user with a colon", old: mailJWT, with: withSend(", send: {as: basic, user: 'a:b', field: key}"),
		want: `scopes.yaml:44: scope mail.read: egress[0].send.user "a:b" must match ^[A-Za-z0-9._@+-]{1,100}$`,
	},
	{
		name: "egress by the host", old: mailJWT, with: withSend(", send: {as: header, name: host, field: key}"),
		want: `scopes.yaml:44: scope mail.read: egress[0].send.name "host" concerns the connection or the body and cannot carry a credential`,
	},
	{
		name: "egress by two headers", old: mailJWT, with: withSend(`, send: {as: header, name: "x-key: a\r\nx-user", field: key}`),
		want: `scopes.yaml:44: scope mail.read: egress[0].send.name "x-key: a\r\nx-user" must match ^[a-z0-9]+(-[a-z0-9]+)*$`,
	},
	{
		name: "egress by a long header", old: mailJWT, with: withSend(", send: {as: header, name: " + strings.Repeat("a", 101) + ", field: key}"),
		want: `scopes.yaml:44: scope mail.read: egress[0].send.name "` + strings.Repeat("a", 101) + `" is longer than 100 bytes`,
	},
	{
		name: "egress of a member of a token", old: "bind: mtls}\n", with: "bind: none}\n    egress: [{hosts: [mail.example], methods: [GET], paths: [/in], send: {as: bearer, field: key}}]\n",
		want: "scopes.yaml:44: scope mail.read: egress[0].send.field cannot be used with kind jwt, whose credential is the token itself",
	},
	{
		name: "egress of a bound token", old: "bind: mtls}\n", with: withRule("{hosts: [mail.example], methods: [GET], paths: [/in], send: {as: bearer}}"),
		want: "scopes.yaml:44: scope mail.read: egress[0].send cannot be used for a token with bind: mtls, which only the holder of its key can use",
	},
	{
		name: "egress that is signed for nothing", old: mailJWT, with: withSend(", send: {as: aws, region: eu-central-1}"),
		want: "scopes.yaml:44: scope mail.read: egress[0].send with as: aws requires service",
	},
	{
		name: "egress that is signed nowhere", old: mailJWT, with: withSend(", send: {as: aws, service: s3}"),
		want: "scopes.yaml:44: scope mail.read: egress[0].send with as: aws requires region",
	},
	{
		name: "egress that is signed for anything", old: mailJWT, with: withSend(", send: {as: aws, service: s3, region: '*'}"),
		want: `scopes.yaml:44: scope mail.read: egress[0].send.region "*" must match ^[a-z0-9]+(-[a-z0-9]+)*$`,
	},
	{
		name: "egress that is signed by one member", old: mailJWT, with: withSend(", send: {as: aws, service: s3, region: eu-central-1, field: key}"),
		want: "scopes.yaml:44: scope mail.read: egress[0].send with as: aws does not take field: it uses fixed members of the credential",
	},
	{
		name: "egress that is signed by a token", old: "bind: mtls}\n", with: withRule("{hosts: [mail.example], methods: [GET], paths: [/in], send: {as: aws, service: s3, region: eu-central-1}}"),
		want: "scopes.yaml:44: scope mail.read: egress[0].send with as: aws requires a credential of kind kv or vault",
	},
	{
		name: "egress of a header for a region", old: mailJWT, with: withSend(", send: {as: header, name: x-key, region: eu-central-1, field: key}"),
		want: "scopes.yaml:44: scope mail.read: egress[0].send with as: header does not take region",
	},
	{
		name: "egress of a certificate in a header", old: mailJWT, with: withCertificate(", send: {as: header, name: x-key, field: private_key}"),
		want: "scopes.yaml:44: scope mail.read: egress[0].send with as: header requires a credential of kind jwt, vault-token, kv, vault or github",
	},
	{
		name: "egress of a certificate that is not sent", old: mailJWT, with: withCertificate(""),
		want: "scopes.yaml:44: scope mail.read: egress[0].send is missing: it defines how a credential of kind pki is sent; example: {as: certificate}",
	},
	{
		name: "egress of half a certificate", old: mailJWT, with: withCertificate(", send: {as: certificate, field: certificate}"),
		want: "scopes.yaml:44: scope mail.read: egress[0].send with as: certificate does not take field: it uses fixed members of the credential",
	},
	{
		name: "egress of nothing", old: "bind: mtls}\n", with: withRule(""),
		want: "scopes.yaml:44: scope mail.read: egress must list 1 to 16 rules, such as {hosts: [api.github.com], methods: [GET], paths: ['/repos/{repo}/issues']}; without egress, no gateway accepts a token of the scope",
	},
	{
		name: "egress that is no list", old: "bind: mtls}\n", with: "bind: mtls}\n    egress: " + mailRule + "\n",
		want: "scopes.yaml:44: scope mail.read: egress must be a list",
	},
	{
		name: "egress without paths", old: "bind: mtls}\n", with: withRule("{hosts: [mail.example], methods: [GET]}"),
		want: "scopes.yaml:44: scope mail.read: egress[0].paths is missing; example: {hosts: [api.github.com], methods: [GET], paths: ['/repos/{repo}/issues']}",
	},
	{
		name: "egress for no method", old: "bind: mtls}\n", with: withRule("{hosts: [mail.example], methods: [], paths: [/]}"),
		want: "scopes.yaml:44: scope mail.read: egress[0].methods must list 1 to 32 items",
	},
	{
		name: "egress method in lower case", old: "bind: mtls}\n", with: withRule("{hosts: [mail.example], methods: [get], paths: [/]}"),
		want: `scopes.yaml:44: scope mail.read: egress[0].methods[0] "get" must be a method in upper case, such as GET, and not CONNECT or TRACE`,
	},
	{
		name: "egress for tunnels", old: "bind: mtls}\n", with: withRule("{hosts: [mail.example], methods: [CONNECT], paths: [/]}"),
		want: `scopes.yaml:44: scope mail.read: egress[0].methods[0] "CONNECT" must be a method in upper case, such as GET, and not CONNECT or TRACE`,
	},
	{
		name: "egress host in upper case", old: "bind: mtls}\n", with: withRule("{hosts: [Mail.example], methods: [GET], paths: [/]}"),
		want: `scopes.yaml:44: scope mail.read: egress[0].hosts[0] "Mail.example" must be a DNS name in lower case, such as api.github.com or api.github.com:8443; a leading *. matches any one label, and at least two labels must follow it`,
	},
	{
		name: "egress to a top-level domain", old: "bind: mtls}\n", with: withRule("{hosts: ['*.example'], methods: [GET], paths: [/]}"),
		want: `scopes.yaml:44: scope mail.read: egress[0].hosts[0] "*.example" must be a DNS name in lower case, such as api.github.com or api.github.com:8443; a leading *. matches any one label, and at least two labels must follow it`,
	},
	{
		name: "egress host that is a number", old: "bind: mtls}\n", with: withRule("{hosts: [169.254.169.254], methods: [GET], paths: [/]}"),
		want: `scopes.yaml:44: scope mail.read: egress[0].hosts[0] "169.254.169.254" must be a DNS name in lower case, such as api.github.com or api.github.com:8443; a leading *. matches any one label, and at least two labels must follow it`,
	},
	{
		name: "egress host with its own port", old: "bind: mtls}\n", with: withRule("{hosts: ['mail.example:443'], methods: [GET], paths: [/]}"),
		want: `scopes.yaml:44: scope mail.read: egress[0].hosts[0] "mail.example:443": omit :443; a host without a port covers 443 and 80`,
	},
	{
		name: "egress host twice", old: "bind: mtls}\n", with: withRule("{hosts: [mail.example, mail.example], methods: [GET], paths: [/]}"),
		want: `scopes.yaml:44: scope mail.read: egress[0].hosts: "mail.example" is listed twice`,
	},
	{
		name: "egress path of an unknown parameter", old: "bind: mtls}\n", with: withRule("{hosts: [mail.example], methods: [GET], paths: ['/{box}']}"),
		want: "scopes.yaml:44: scope mail.read: egress[0].paths[0] names {box}, which is not in params (none)",
	},
	{
		name: "egress path without a slash", old: "bind: mtls}\n", with: withRule("{hosts: [mail.example], methods: [GET], paths: [in]}"),
		want: `scopes.yaml:44: scope mail.read: egress[0].paths[0] "in" must begin with a slash, such as /repos/{repo}/issues`,
	},
	{
		name: "egress path with an escape", old: "bind: mtls}\n", with: withRule("{hosts: [mail.example], methods: [GET], paths: ['/a%20b']}"),
		want: `scopes.yaml:44: scope mail.read: egress[0].paths[0] "/a%20b" may contain only {param} and letters, digits and / . _ ~ @ : + , = - *, and %2f for an escaped slash`,
	},
	{
		name: "egress path with dots", old: "bind: mtls}\n", with: withRule("{hosts: [mail.example], methods: [GET], paths: [/in/../out]}"),
		want: `scopes.yaml:44: scope mail.read: egress[0].paths[0] "/in/../out" has an empty, . or .. segment`,
	},
	{
		name: "egress path with ** inside", old: "bind: mtls}\n", with: withRule("{hosts: [mail.example], methods: [GET], paths: ['/**/in']}"),
		want: `scopes.yaml:44: scope mail.read: egress[0].paths[0] "/**/in" has a ** that is not its last segment`,
	},
	{
		name: "egress path with an escaped slash at the end of a segment", old: "bind: mtls}\n", with: withRule("{hosts: [mail.example], methods: [GET], paths: ['/in%2f']}"),
		want: `scopes.yaml:44: scope mail.read: egress[0].paths[0] "/in%2f" has an empty, . or .. segment`,
	},
	{
		name: "egress path with dots after an escaped slash", old: "bind: mtls}\n", with: withRule("{hosts: [mail.example], methods: [GET], paths: ['/in%2f..']}"),
		want: `scopes.yaml:44: scope mail.read: egress[0].paths[0] "/in%2f.." has an empty, . or .. segment`,
	},
	{
		name: "egress path with half a * before an escaped slash", old: "bind: mtls}\n", with: withRule("{hosts: [mail.example], methods: [GET], paths: ['/@*%2f*']}"),
		want: `scopes.yaml:44: scope mail.read: egress[0].paths[0] "/@*%2f*" has a * that is not a whole segment, or a whole part between colons or escaped slashes`,
	},
	{
		name: "egress path with half a *", old: "bind: mtls}\n", with: withRule("{hosts: [mail.example], methods: [GET], paths: ['/in*']}"),
		want: `scopes.yaml:44: scope mail.read: egress[0].paths[0] "/in*" has a * that is not a whole segment, or a whole part between colons or escaped slashes`,
	},
	{
		name: "egress path with half a * before a colon", old: "bind: mtls}\n", with: withRule("{hosts: [mail.example], methods: [GET], paths: ['/in/a*:send']}"),
		want: `scopes.yaml:44: scope mail.read: egress[0].paths[0] "/in/a*:send" has a * that is not a whole segment, or a whole part between colons or escaped slashes`,
	},
	{
		name: "egress path with ** before a colon", old: "bind: mtls}\n", with: withRule("{hosts: [mail.example], methods: [GET], paths: ['/in/**:send']}"),
		want: `scopes.yaml:44: scope mail.read: egress[0].paths[0] "/in/**:send" has a * that is not a whole segment, or a whole part between colons or escaped slashes`,
	},
	{
		name: "egress with no headers", old: "bind: mtls}\n", with: withHeaders(""),
		want: "scopes.yaml:44: scope mail.read: egress[0].headers must list 1 to 32 items",
	},
	{
		name: "egress header twice", old: "bind: mtls}\n", with: withHeaders("sudo, sudo"),
		want: `scopes.yaml:44: scope mail.read: egress[0].headers: "sudo" is listed twice`,
	},
	{
		name: "egress header in upper case", old: "bind: mtls}\n", with: withHeaders("Sudo"),
		want: `scopes.yaml:44: scope mail.read: egress[0].headers[0] "Sudo" must be the name of a header in lower case, with letters, digits and hyphens only, such as x-goog-copy-source, or the beginning of names, such as x-goog-meta-*`,
	},
	{
		name: "egress header with an underscore", old: "bind: mtls}\n", with: withHeaders("x_user"),
		want: `scopes.yaml:44: scope mail.read: egress[0].headers[0] "x_user" must be the name of a header in lower case, with letters, digits and hyphens only, such as x-goog-copy-source, or the beginning of names, such as x-goog-meta-*`,
	},
	{
		name: "egress header with a colon", old: "bind: mtls}\n", with: withHeaders("'sudo: root'"),
		want: `scopes.yaml:44: scope mail.read: egress[0].headers[0] "sudo: root" must be the name of a header in lower case, with letters, digits and hyphens only, such as x-goog-copy-source, or the beginning of names, such as x-goog-meta-*`,
	},
	{
		name: "egress header with half a *", old: "bind: mtls}\n", with: withHeaders("x-goo*"),
		want: `scopes.yaml:44: scope mail.read: egress[0].headers[0] "x-goo*" must be the name of a header in lower case, with letters, digits and hyphens only, such as x-goog-copy-source, or the beginning of names, such as x-goog-meta-*`,
	},
	{
		name: "egress header of any name", old: "bind: mtls}\n", with: withHeaders("'*'"),
		want: `scopes.yaml:44: scope mail.read: egress[0].headers[0] "*" must be the name of a header in lower case, with letters, digits and hyphens only, such as x-goog-copy-source, or the beginning of names, such as x-goog-meta-*`,
	},
	{
		name: "egress header of any vendor", old: "bind: mtls}\n", with: withHeaders("'x-*'"),
		want: `scopes.yaml:44: scope mail.read: egress[0].headers[0] "x-*" covers most headers of every host; name those that are meant, such as x-goog-copy-source or x-goog-*`,
	},
	{
		name: "egress header with a long name", old: "bind: mtls}\n", with: withHeaders(strings.Repeat("a", 101)),
		want: `scopes.yaml:44: scope mail.read: egress[0].headers[0] "` + strings.Repeat("a", 101) + `" is longer than 100 bytes`,
	},
	{
		name: "egress header that is the credential", old: "bind: mtls}\n", with: withHeaders("authorization"),
		want: `scopes.yaml:44: scope mail.read: egress[0].headers[0] "authorization" carries a credential or an identity, or is for proxies and connections, and no gateway forwards it; send says how the credential is sent`,
	},
	{
		name: "egress header of an API key", old: "bind: mtls}\n", with: withHeaders("x-api-key"),
		want: `scopes.yaml:44: scope mail.read: egress[0].headers[0] "x-api-key" carries a credential or an identity, or is for proxies and connections, and no gateway forwards it; send says how the credential is sent`,
	},
	{
		name: "egress header of a cookie", old: "bind: mtls}\n", with: withHeaders("cookie"),
		want: `scopes.yaml:44: scope mail.read: egress[0].headers[0] "cookie" carries a credential or an identity, or is for proxies and connections, and no gateway forwards it; send says how the credential is sent`,
	},
	{
		name: "egress header of the host", old: "bind: mtls}\n", with: withHeaders("host"),
		want: `scopes.yaml:44: scope mail.read: egress[0].headers[0] "host" carries a credential or an identity, or is for proxies and connections, and no gateway forwards it; send says how the credential is sent`,
	},
	{
		name: "egress header of a proxy", old: "bind: mtls}\n", with: withHeaders("x-forwarded-for"),
		want: `scopes.yaml:44: scope mail.read: egress[0].headers[0] "x-forwarded-for" carries a credential or an identity, or is for proxies and connections, and no gateway forwards it; send says how the credential is sent`,
	},
	{
		name: "egress headers of proxies", old: "bind: mtls}\n", with: withHeaders("'x-forwarded-*'"),
		want: `scopes.yaml:44: scope mail.read: egress[0].headers[0] "x-forwarded-*" carries a credential or an identity, or is for proxies and connections, and no gateway forwards it; send says how the credential is sent`,
	},
	{
		name: "egress headers of some proxies", old: "bind: mtls}\n", with: withHeaders("'x-forwarded-a-*'"),
		want: `scopes.yaml:44: scope mail.read: egress[0].headers[0] "x-forwarded-a-*" carries a credential or an identity, or is for proxies and connections, and no gateway forwards it; send says how the credential is sent`,
	},
	{
		name: "egress header of the next hop", old: "bind: mtls}\n", with: withHeaders("transfer-encoding"),
		want: `scopes.yaml:44: scope mail.read: egress[0].headers[0] "transfer-encoding" carries a credential or an identity, or is for proxies and connections, and no gateway forwards it; send says how the credential is sent`,
	},
	{
		name: "egress header of the connection", old: "bind: mtls}\n", with: withHeaders("connection"),
		want: `scopes.yaml:44: scope mail.read: egress[0].headers[0] "connection" concerns the connection, and cannot be named`,
	},
	{
		name: "egress header of an upgrade", old: "bind: mtls}\n", with: withHeaders("upgrade"),
		want: `scopes.yaml:44: scope mail.read: egress[0].headers[0] "upgrade" concerns the connection, and cannot be named`,
	},
	{
		name: "egress header of another method", old: "bind: mtls}\n", with: withHeaders("x-http-method-override"),
		want: `scopes.yaml:44: scope mail.read: egress[0].headers[0] "x-http-method-override" changes the method or the target of a call; use methods and paths`,
	},
	{
		name: "egress header of another target", old: "bind: mtls}\n", with: withHeaders("destination"),
		want: `scopes.yaml:44: scope mail.read: egress[0].headers[0] "destination" changes the method or the target of a call; use methods and paths`,
	},
	{
		name: "egress header that the gateway sets", old: mailJWT, with: withSend(", headers: [x-key], send: {as: header, name: x-key, field: key}"),
		want: `scopes.yaml:44: scope mail.read: egress[0].headers lists "x-key", which the gateway sets to the credential; remove it`,
	},
	{
		name: "egress header of a login", old: mailJWT, with: withLogins("{hosts: ['db.example:5432'], databases: [mail], headers: [sudo]}"),
		want: `scopes.yaml:44: scope mail.read: egress[0]: unknown key "headers"; the keys are hosts, databases`,
	},
	{
		name: "egress path cut short", old: "bind: mtls}\n", with: withRule("{hosts: [mail.example], methods: [GET], paths: ['/{in']}"),
		want: `scopes.yaml:44: scope mail.read: egress[0].paths[0] "/{in" has a { without a }`,
	},
}

func TestEgressIsRead(t *testing.T) {
	with := replace(t, worldScopes, "bind: mtls}\n", withRule(mailRule+", {hosts: ['*.mail.example:8443'], methods: [M-SEARCH], paths: ['/*:send', '/**'], headers: [sudo, 'x-goog-*']}"))
	c := load(t, with, worldPolicies)
	want := []scopes.Egress{
		{Hosts: []string{"mail.example"}, Methods: []string{"GET"}, Paths: []string{"/in", "/out"}},
		{Hosts: []string{"*.mail.example:8443"}, Methods: []string{"M-SEARCH"}, Paths: []string{"/*:send", "/**"}, Headers: []string{"sudo", "x-goog-*"}},
	}
	got, _ := c.Scope("mail.read")
	if diff := cmp.Diff(want, got.Egress); diff != "" {
		t.Fatalf("egress (-want +got):\n%s", diff)
	}
	got.Egress[0].Hosts[0], got.Egress[1].Headers[0] = "evil.example", "x-evil"
	if again, _ := c.Scope("mail.read"); again.Egress[0].Hosts[0] != "mail.example" || again.Egress[1].Headers[0] != "sudo" {
		t.Error("a copy of a scope reaches into the catalogue")
	}
}

// A credential with more than one member is also sent as the rule says.
func TestSendRulesForMultiFieldCredentialsLoad(t *testing.T) {
	for text, want := range map[string]scopes.Send{
		withSend(", send: {as: aws, service: s3, region: eu-central-1}"): {As: scopes.SendAWS, Service: "s3", Region: "eu-central-1"},
		withSend(", send: {as: certificate}"):                            {As: scopes.SendCertificate},
		withCertificate(", send: {as: certificate}"):                     {As: scopes.SendCertificate},
	} {
		got, _ := load(t, replace(t, worldScopes, mailJWT, text), worldPolicies).Scope("mail.read")
		if len(got.Egress) != 1 || got.Egress[0].Send != want {
			t.Errorf("got %+v, want %+v", got.Egress, want)
		}
	}
}
