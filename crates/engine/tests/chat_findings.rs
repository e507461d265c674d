//! What fuzzing found in chat templates.

use minfer_engine::chat::{ChatTemplate, Message, RenderOptions, SpecialTokens, TemplateError};

fn render(source: &str) -> Result<String, TemplateError> {
    let template = ChatTemplate::new(source, SpecialTokens::default())?;
    let message = Message::new("user", "a".repeat(1000));
    template.render(&[message], &RenderOptions::default()).map(|r| r.text().to_owned())
}

/// `format` allocated whatever width it was asked for: 100 GB, and the process was ended.
#[test]
fn widths_of_format_are_paid_for() {
    use TemplateError::OutOfFuel;
    for endless in [
        "{{ '{:>99999999999}'.format(1) }}",
        "{{ '{:099999999999}'.format(1) }}",
        "{{ '{:.99999999999f}'.format(1.5) }}",
        "{{ '{:^99999999999999999999999}'.format('a') }}",
    ] {
        assert_eq!(render(endless), Err(OutOfFuel), "{endless}");
    }
    // A field for each use of a long text: 1000 times a message of 1000 bytes, squared.
    let squared = "{% set m = messages[0].content %}{% set f = '{0}'*1000 %}{{ f.format(f.format(m)) }}";
    assert_eq!(render(squared), Err(OutOfFuel));
    let hidden = "{% set f = '{0[a]}'*1000 %}{{ f.format({'a': f.format({'a': messages[0].content})}) }}";
    assert_eq!(render(hidden), Err(OutOfFuel));
    // What is asked for in earnest is cheap.
    assert_eq!(render("{{ '{:>6}|{:.2f}|{}'.format(12, 1.5, 'x') }}").unwrap(), "    12|1.50|x");
}

/// Joining a million references to a text of a million bytes asked for a terabyte, and the process was ended. Every way to
/// make a long text takes steps for its bytes before it makes it, or at most doubles what was paid for.
#[test]
fn long_texts_are_paid_for_before_they_are_made() {
    let long = "{% set many = ['a' * 1000000] * 100000 %}";
    let shared = "{% set ns = namespace(x=['aaaa']) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}";
    for endless in [
        format!("{long}{{{{ ''.join(many) }}}}"),
        format!("{long}{{{{ many | join }}}}"),
        format!("{long}{{{{ many | map('upper') | join(',') }}}}"),
        format!("{long}{{% set x %}}{{% for m in many %}}{{{{ m }}}}{{% endfor %}}{{% endset %}}"),
        format!("{shared}{{{{ ns.x | string }}}}"),
        format!("{shared}{{{{ ns.x | pprint }}}}"),
        format!("{shared}{{{{ ns.x | join }}}}"),
        format!("{shared}{{{{ ''.join([ns.x]) }}}}"),
        "{{ 'a' * 1000000000 }}".to_owned(),
        "{{ ('a' * 1000000) | replace('a', 'b' * 1000000) }}".to_owned(),
        "{% set ns = namespace(x='a') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}"
            .to_owned(),
    ] {
        assert_eq!(render(&endless), Err(TemplateError::OutOfFuel), "{endless}");
    }
    // Negative control: the same on data of ordinary size.
    for (source, want) in [
        ("{{ ['a', 1, 'b'] | join('-') }}", "a-1-b"),
        ("{{ ['a', 'b'] | map('upper') | join }}", "AB"),
        ("{{ [{'n': 1}, {'n': 2}] | join(',', attribute='n') }}", "1,2"),
        ("{{ ', '.join(['a', 'b'] | map('upper')) }}", "A, B"),
        ("{{ [1, 'a'] | string }}", "[1, 'a']"),
    ] {
        assert_eq!(render(source).unwrap(), want, "{source}");
    }
}

/// Printing a value that contains itself overflowed the stack; one whose text is exponentially longer than itself took
/// for ever.
#[test]
fn values_that_contain_themselves_are_not_printed() {
    let cycle = "{% set ns = namespace() %}{% set ns.a = ns %}";
    let shared =
        "{% set ns = namespace(a=['x']) %}{% for i in range(60) %}{% set ns.a = [ns.a, ns.a] %}{% endfor %}";
    for print in ["{{ ns }}", "{{ [ns.a] }}", "{{ raise_exception(ns) }}"] {
        let error = render(&format!("{cycle}{print}")).unwrap_err();
        assert!(error.to_string().contains("value nested deeper than 128"), "{print}: {error}");
        assert_eq!(render(&format!("{shared}{print}")), Err(TemplateError::OutOfFuel), "{print}");
    }
    // Negative control: nested values of ordinary size are printed.
    assert_eq!(render("{{ [[1, 'a'], {'k': [none]}] }}").unwrap(), "[[1, 'a'], {'k': [None]}]");
}

/// Freeing or comparing values nested in each other overflowed the stack. The test's own thread has 2 MiB.
#[test]
fn values_nested_as_deep_as_fuel_allows_are_freed() {
    for (open, close) in [("[", "]"), ("{1:", "}")] {
        let nest = |n: usize, name: &str| {
            let value = format!("{}ns.{name}{}", open.repeat(20), close.repeat(20));
            format!("{{% for i in range({n}) %}}{{% set ns.{name} = {value} %}}{{% endfor %}}")
        };
        let start = "{% set ns = namespace(x=[], y=[]) %}";
        let deep = format!("{start}{}{{{{ ns.x|length }}}}", nest(10_000, "x"));
        assert_eq!(render(&deep).unwrap(), "1", "200,000 times {open}");
        let endless = format!("{start}{}", nest(99_999, "x"));
        assert_eq!(render(&endless), Err(TemplateError::OutOfFuel), "{open}");
        let compared = format!("{start}{}{}{{{{ ns.x == ns.y }}}}", nest(9_000, "x"), nest(9_000, "y"));
        assert_eq!(render(&compared).unwrap(), "True", "{open}");
    }
    // No namespace is needed: a template of 100 kB can do it in a straight line.
    let line = format!("{{% set x = {}x{} %}}\n", "[".repeat(40), "]".repeat(40));
    assert_eq!(
        render(&format!("{{% set x = [] %}}{}{{{{ x|length }}}}", line.repeat(1000))).unwrap().trim(),
        "1"
    );
}

/// Compiling a long chain of operators overflowed the stack, or took time in proportion to the square of its length.
#[test]
fn long_chains_compile_or_are_refused() {
    let new = |source: &str| ChatTemplate::new(source, SpecialTokens::default());
    let chain = |[first, link, last]: [&str; 3], bytes: usize| {
        first.to_owned() + &link.repeat(bytes / link.len()) + last
    };
    for links in [
        ["{{ 1", "+1\n", " }}"],
        ["{{ 1", "~1\n", " }}"],
        ["{{ 1", "**1\n", " }}"],
        ["{{ 1", "\nand 1", " }}"],
        ["{{ 1", "\nif 1 else 1", " }}"],
        ["{{ 1", "\nis odd", " }}"],
        ["{{ '1'", "|e\n", " }}"],
        ["{{ x", ".a\n", " }}"],
        ["{{ x", "[:]\n", " }}"],
        ["{{ x", "()\n", " }}"],
        ["{{ ", "-\n", "1 }}"],
        ["{{ ", "not\n", "1 }}"],
        ["{{ ''", "~'\\''\n", " }}"],
    ] {
        let error = new(&chain(links, 99_000)).unwrap_err();
        let want = "chat template, line 1: a tag longer than 4096 bytes, not counting strings";
        assert_eq!(error.to_string(), want, "{links:?}");
        // Short enough, and as often as the source can hold it.
        let many = (chain(links, 4000) + "\n").repeat(24);
        let start = std::time::Instant::now();
        assert!(new(&many).is_ok(), "{links:?}");
        assert!(start.elapsed().as_secs() < 20, "{links:?}: {:?}", start.elapsed());
    }
    // Each of these tags is within the one before it.
    assert!(new(&chain(["{% if 0 %}", "{% elif 0 %}\n", "{% endif %}"], 99_000)).is_ok());
    // Text is as long as it likes: in strings, comments, and outside of tags.
    for long in ["{{ '{}' }}", "{# {{ {} #}", "{} {{ 1 }}", "{% raw %}{{ {}{% endraw %}"] {
        let long = long.replace("{}", &"text\n".repeat(10_000));
        assert!(new(&long).is_ok(), "{}", &long[..20]);
    }
}
