package scopes

import (
	"bytes"
	"encoding/json"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// object is a JSON Schema, or a part of one.
type object = map[string]any

const schemaDialect = "https://json-schema.org/draft/2020-12/schema"

// durationSyntax is the syntax of a duration. The schema does not check its bounds.
const durationSyntax = `^\+?(([0-9]+(\.[0-9]*)?|\.[0-9]+)(h|m|s|ms|us|µs|μs|ns))+$`

// ScopesSchema returns the JSON Schema (2020-12) of a scope file, for editors. It is generated from the same definitions
// that Load uses. It covers the structure only: Load may reject what the schema accepts, and Load rejects everything that
// the schema rejects.
func ScopesSchema() []byte {
	return document("Brevet scopes", "scopes", object{"type": "array", "items": scopeSchema()})
}

// ExamplesSchema returns the JSON Schema (2020-12) of an example table.
func ExamplesSchema() []byte {
	return document("Brevet examples", "examples", object{"type": "array", "items": exampleSchema()})
}

func document(title, key string, list object) []byte {
	schema := closed([]string{key}, object{key: list})
	schema["$schema"], schema["title"] = schemaDialect, title
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(schema); err != nil {
		panic(err) // cannot happen: it consists of maps, strings and numbers
	}
	return out.Bytes()
}

// closed returns the schema of a mapping with these keys only.
func closed(needs []string, properties object) object {
	out := object{"type": "object", "properties": properties, "additionalProperties": false}
	if len(needs) > 0 {
		out["required"] = needs
	}
	return out
}

// variant returns the schema of a mapping that one key tells apart from its siblings.
func variant(key string, value any, needs, may []string, schemas object) object {
	properties := object{key: object{"const": value}}
	for _, name := range slices.Concat(needs, may) {
		properties[name] = schemas[name]
	}
	return closed(slices.Concat([]string{key}, needs), properties)
}

func text(max int) object { return object{"type": "string", "minLength": 1, "maxLength": max} }

func matching(syntax *regexp.Regexp) object {
	return object{"type": "string", "pattern": syntax.String()}
}

func choice[T ~string](words ...T) object { return object{"enum": words} }

func whole(lo, hi int64) object { return object{"type": "integer", "minimum": lo, "maximum": hi} }

func listOf(item object, lo, hi int) object {
	return object{"type": "array", "items": item, "minItems": lo, "maxItems": hi}
}

func duration() object { return object{"type": "string", "pattern": durationSyntax} }

func flag() object { return object{"type": "boolean"} }

// described adds the description that an editor shows for a key.
func described(what string, schema object) object {
	out := maps.Clone(schema)
	out["description"] = what
	return out
}

// schema returns the schema of a template for a place: which text may stand between parameters and before the first one.
func (p *place) schema() object {
	class := strings.TrimSuffix(strings.TrimPrefix(p.literal.String(), "^"), "*$")
	name := strings.TrimSuffix(strings.TrimPrefix(paramSyntax.String(), "^"), "$")
	out := object{"type": "string", "pattern": `^(` + class + `|\{` + name + `\})*$`}
	if p.head != nil {
		out["allOf"] = []object{{"pattern": p.head.String()}}
	}
	return out
}

func scopeSchema() object {
	name := matching(nameSyntax)
	name["maxLength"] = maxName
	approval := closed([]string{"group"}, object{
		"group":       described("The group whose members may vote.", matching(groupSyntax)),
		"quorum":      described("How many different people must approve. Default 1.", whole(1, maxQuorum)),
		"expires":     described("How long the request waits for approval. Default "+FormatDuration(defaultApprovalWait)+".", duration()),
		"break_glass": described("Another group. Two of its members can approve when the first group does not respond. The credential then lives at most 30 minutes.", matching(groupSyntax)),
		"remember":    described("Whether an approval can be reused for the same request until the task ends.", choice(RememberNever, RememberTask)),
		"passkey":     described("Whether the approver must sign what is approved with a passkey.", choice(PasskeyNever, PasskeyRequired)),
	})
	per, count := choice(limitPers...), whole(1, maxLimitCount)
	limit := object{"oneOf": []object{
		closed([]string{"per", "count", "window"}, object{"per": per, "count": count, "window": duration()}),
		closed([]string{"per", "live"}, object{"per": per, "live": count}),
	}}
	return closed([]string{"name", "title", "authority", "resource", "ttl", "credential"}, object{
		"name":       described("The name that requests and policies use, such as github.issues.read.", name),
		"title":      described("A short description. Approvers see it.", text(maxTitle)),
		"authority":  described("How much harm the credential can do.", choice(authorities...)),
		"params":     described("The parameters that a request must set.", paramsSchema()),
		"resource":   described("The resource of a request, for policies: a template such as github:repo/{repo}.", resourcePlace.schema()),
		"ttl":        described("The lifetime of the credential.", closed([]string{"default", "max"}, object{"default": duration(), "max": duration()})),
		"approval":   described("Who can approve. Without it, a request that needs approval is denied.", approval),
		"limits":     described("How many credentials in a time window, or live at the same time.", listOf(limit, 0, maxLimits)),
		"credential": described("The credential to create, and how.", credentialSchema()),
		"egress":     described("The calls that a gateway allows with a credential of the scope. Without it, none.", listOf(egressSchema(), 1, maxEgress)),
	})
}

func paramsSchema() object {
	value := matching(baselineSyntax)
	value["maxLength"] = maxParamLength
	keys := object{
		"pattern":    described("An RE2 expression that must match the whole value.", text(maxPattern)),
		"max_length": described("The maximum length in bytes.", whole(1, maxParamLength)),
		"values":     object{"type": "array", "items": value, "minItems": 1, "maxItems": maxValues, "uniqueItems": true},
		"min":        whole(-maxSafeInt, maxSafeInt),
		"max":        whole(-maxSafeInt, maxSafeInt),
	}
	var types []object
	for _, kind := range []ParamType{ParamString, ParamEnum, ParamInt, ParamBool} {
		types = append(types, variant("type", kind, paramKeys[kind].needs, paramKeys[kind].may, keys))
	}
	return object{
		"type": "object", "maxProperties": maxParams, "additionalProperties": object{"oneOf": types},
		"propertyNames": object{"pattern": paramSyntax.String(), "not": choice(cedarWords...)},
	}
}

func credentialSchema() object {
	mount := matching(mountSyntax)
	mount["maxLength"] = maxMount
	rule := closed([]string{"path", "capabilities"}, object{
		"path": rulePlace.schema(), "capabilities": object{"type": "array", "items": choice(capabilities...), "minItems": 1},
	})
	federation := closed([]string{"subject"}, object{
		"subject":   described("The claim sub, which the other system's trust configuration names: a template such as repo:{repo}:task.", subjectPlace.schema()),
		"algorithm": described("The signature algorithm. Default RS256.", choice(AlgorithmRS256, AlgorithmES256)),
		"exchange":  described("What the other system gives for the token. An egress gateway needs it to exchange the token itself.", exchangeSchema()),
	})
	keys := object{
		"audience":     described("The one audience of the token: an absolute URI or, with federation, what the other system expects.", text(maxAudience)),
		"algorithm":    described("The JWS algorithm of the signature, which the service must accept. EdDSA (Ed25519) costs less than ES256. Default ES256.", choice(AlgorithmES256, AlgorithmEdDSA)),
		"bind":         described("mtls: the token is valid only with the certificate that it was issued to, and expires with it. dpop: it is valid only with proofs by the key that requested it.", choice(BindNone, BindMTLS, BindDPoP)),
		"uses":         described("1: the token is valid for one call. The first service that checks it uses it up.", whole(1, 1)),
		"status_list":  described("The token names a status list that shows whether it was revoked, for services that cannot introspect it.", flag()),
		"federation":   described("The token is for the token exchange of another system, such as a cloud. Brevet's resource servers refuse it.", federation),
		"mount":        described("The mount path of the engine.", mount),
		"role":         described("The engine's role.", rolePlace.schema()),
		"path":         described("The path in Vault to read or write.", pathPlace.schema()),
		"method":       choice(MethodRead, MethodWrite),
		"data":         object{"type": "object", "maxProperties": maxDataKeys, "propertyNames": matching(dataKeySyntax), "additionalProperties": dataPlace.schema()},
		"static":       described("The engine returns no lease: the secret cannot be revoked.", flag()),
		"revocable":    described("false: the other system accepts the credential until it expires, and Vault cannot revoke it. Brevet sends the granted lifetime as ttl.", flag()),
		"min_ttl":      described("With revocable: false, the shortest lifetime that the other system gives.", duration()),
		"common_name":  dnsPlace.schema(),
		"dns_names":    listOf(dnsPlace.schema(), 0, maxNames),
		"key":          described("Who generates the key. Default client.", choice("client", "server")),
		"principals":   listOf(principalPlace.schema(), 1, maxNames),
		"policy":       described("What the token allows.", listOf(rule, 1, maxRules)),
		"app":          described("The name of the GitHub App in the server's configuration.", matching(appSyntax)),
		"installation": described("The id of the App's installation, the number at the end of its settings page's address.", whole(1, maxSafeInt)),
		"repositories": described("The repositories that the token is for: full names of one owner, such as acme/{repo}.", listOf(repositoryPlace.schema(), 1, maxRepositories)),
		"permissions": described("What the token may do, by GitHub's names of permissions: read, write or admin.", object{
			"type": "object", "minProperties": 1, "maxProperties": maxPermissions,
			"propertyNames": matching(permissionSyntax), "additionalProperties": permissionPlace.schema(),
		}),
		keyWithinSVID: described("The credential expires with the SVID at the latest.", flag()),
	}
	var kinds []object
	for _, kind := range credentialKinds() {
		kinds = append(kinds, variant("kind", kind.name, kind.needs, kind.may, keys))
	}
	return object{"oneOf": kinds}
}

func egressSchema() object {
	host, method, path, header := matching(hostSyntax), matching(methodSyntax), egressPlace.schema(), matching(ruleHeaderSyntax)
	host["maxLength"], path["maxLength"], header["maxLength"] = maxHost, maxTemplate, maxSendText
	method["not"], header["not"] = choice(refusedMethods...), choice(anyVendor)
	items := func(item object) object {
		list := listOf(item, 1, maxEgressItems)
		list["uniqueItems"] = true
		return list
	}
	databases := matching(databaseSyntax)
	return object{"anyOf": []object{
		closed([]string{"hosts", "methods", "paths"}, object{
			"hosts":   described("Exact names, or *. and a name, where * matches any one label. With a port unless it is 443 or 80.", items(host)),
			"methods": described("Methods in upper case.", items(method)),
			"paths":   described("Matched by segment: literal text, {param}, * for any one segment without a colon, *:verb for one with it, and at the end ** for all that follow.", items(path)),
			"headers": described("Request headers that an egress gateway forwards in addition to harmless ones: names in lower case, or beginnings of names that end in -*.", items(header)),
			"send":    described("How an egress gateway adds the credential to a call. Default: as a bearer token.", sendSchema()),
		}),
		closed([]string{"hosts", "databases"}, object{
			"hosts":     described("For credentials of kind database: exact names with their ports.", items(host)),
			"databases": described("The databases that an egress gateway logs in to.", items(databases)),
		}),
	}}
}

func sendSchema() object {
	var ways []object
	for _, way := range sendWays {
		name := matching(sendQuerySyntax)
		if way.as == SendHeader {
			name = matching(sendHeaderSyntax)
		}
		name["maxLength"] = maxSendText
		var may []string
		if !way.whole {
			may = []string{"field"}
		}
		ways = append(ways, variant("as", way.as, way.needs, may, object{
			"field": described("The member of the credential to send. Not for a JWT.", matching(dataKeySyntax)),
			"name":  name, "user": matching(sendUserSyntax),
			"service": described("The AWS service that calls are signed for, such as s3.", matching(sendAWSSyntax)),
			"region":  described("The AWS region of the service, such as eu-central-1.", matching(sendAWSSyntax)),
		}))
	}
	return object{"oneOf": ways}
}

func exampleSchema() object {
	outcome := choice(Allow, Deny, Pending, Invalid)
	want := closed([]string{"outcome"}, object{
		"outcome":   outcome,
		"reason":    described("The reason of the decision, such as no_permit.", object{"type": "string"}),
		"ttl":       duration(),
		"policies":  described("Exactly the policies that the decision names.", object{"type": "array", "items": object{"type": "string"}}),
		"narrowest": described("The scope of the nearest request that would pass, or none.", object{"type": "string"}),
	})
	user := closed([]string{"id"}, object{
		"id":     described("The issuer, # and the sub claim.", object{"type": "string"}),
		"groups": object{"type": "array", "items": object{"type": "string"}},
	})
	value := object{"type": []string{"string", "integer", "boolean"}}
	fields := object{
		"name":     text(maxTitle),
		"as":       described("The SPIFFE ID of the sandbox.", object{"type": "string", "pattern": "^spiffe://[^/]+/."}),
		"svid":     described("The kind of SVID that it presents. Default x509.", choice("x509", "jwt")),
		"scope":    object{"type": "string"},
		"params":   object{"type": "object", "additionalProperties": value},
		"ttl":      duration(),
		"user":     described("The person on whose behalf the sandbox acts, if any.", user),
		"approved": described("Whether people have approved the request.", flag()),
		"at":       described("The time of the request.", object{"type": "string", "format": "date-time"}),
		"want":     described("The expected outcome, or more of the expected decision.", object{"anyOf": []object{outcome, want}}),
	}
	for _, name := range contextNames {
		fields[name] = object{"type": "string"}
	}
	return closed([]string{"name", "as", "scope", "want"}, fields)
}
