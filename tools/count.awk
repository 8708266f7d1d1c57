# Reads what go test -json prints: passes on what tests said that fail, and counts those without parts of their own. It
# ends with "N passed, N failed", and fails when something did, or a package did not end, or has no test that ran.
function field(name) {
	if (!match($0, "\"" name "\":\"([^\"\\\\]|\\\\.)*\"")) return ""
	return substr($0, RSTART + length(name) + 4, RLENGTH - length(name) - 5)
}
{
	action = field("Action"); test = field("Package") " " field("Test")
	if (action == "start") begun[field("Package")] = 1
	if (action == "output") said[test] = said[test] field("Output")
	if (action != "pass" && action != "fail" && action != "skip") next
	if (field("Test") == "") {
		delete begun[field("Package")]
		if (action == "fail" || !(field("Package") in ran)) { broken = 1; told[test] = 1 }
		next
	}
	ran[field("Package")] = 1
	ended[test] = action
	if (action != "pass") told[test] = 1
	while (sub("/[^/]*$", "", test)) parent[test] = 1
}
END {
	for (test in told) {
		text = said[test]
		gsub(/\\n/, "\n", text); gsub(/\\t/, "\t", text); gsub(/\\"/, "\"", text)
		printf "%s\n%s", test, text
	}
	for (test in ended) if (!(test in parent)) { if (ended[test] == "pass") passed++; else failed++ }
	for (name in begun) { print name " did not end"; broken = 1 }
	if (broken && !failed) failed = 1
	printf "%d passed, %d failed\n", passed, failed
	exit broken || failed > 0 || passed == 0
}
