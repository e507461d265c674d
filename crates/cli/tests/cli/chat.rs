//! `chat` through a pipe.

use serde_json::json;

use crate::support::{Ran, minfer, run_with_input, tiny_minfer};

fn chat(arguments: &[&str], input: &str) -> Ran {
    let flags = ["chat", "--temp", "0", "-n", "12", "-v"];
    run_with_input(minfer(&[&flags[..], arguments].concat()), input.as_bytes())
}

/// Of each reply: prompt tokens evaluated, tokens generated, prompt tokens reused.
fn turns(ran: &Ran) -> Vec<[usize; 3]> {
    let number = |line: &str, before: &str, behind: &str| {
        let (_, rest) = line.split_once(before)?;
        rest.split_once(behind)?.0.trim().parse::<usize>().ok()
    };
    let all = |before, behind| ran.stderr.lines().filter_map(move |line| number(line, before, behind));
    let ended = ran.stderr.lines().filter(|l| l.starts_with("ended"));
    let reused = ended.map(|l| number(l, ", ", " prompt tokens reused").unwrap());
    all("prompt  ", " token")
        .zip(all("generate", " token"))
        .zip(reused)
        .map(|((p, g), r)| [p, g, r])
        .collect()
}

#[test]
fn each_turn_evaluates_only_what_is_new() {
    let ran = chat(&[], "Hello there.\nAnd who are you?\n");
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert_eq!(ran.stdout.lines().count(), 2, "{:?}", ran.stdout);
    let turns = turns(&ran);
    let [[first, said, 0], [second, _, reused]] = turns[..] else { panic!("{turns:?}") };
    // The last token said has not been evaluated yet, or the one that ends the turn.
    assert!((first + said - 1..=first + said).contains(&reused), "{turns:?}");
    assert!(second < 20, "{turns:?}");
}

#[test]
fn regen_answers_the_same_message_again() {
    let ran = chat(&[], "Hello there.\n/regen\n");
    let lines: Vec<_> = ran.stdout.lines().collect();
    assert_eq!(lines.len(), 2, "{} {}", ran.stdout, ran.stderr);
    assert_eq!(lines[0], lines[1]);
    let turns = turns(&ran);
    assert_eq!((turns[1][0], turns[1][2]), (1, turns[0][0] - 1), "{turns:?}");
}

#[test]
fn a_cleared_conversation_is_a_new_one() {
    let ran = chat(&[], "Hello there.\n/clear\nHello there.\n");
    let lines: Vec<_> = ran.stdout.lines().collect();
    assert_eq!(lines[0], lines[1]);
}

#[test]
fn conversations_are_saved_and_gone_on_with() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("c.json");
    let name = file.to_str().unwrap();
    let input = format!("/system Be kind.\n\"\"\"\nHello\nthere.\n\"\"\"\n/save {name}\n/exit\nnot read\n");
    let ran = chat(&[], &input);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let saved: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!(saved[0], json!({"role": "system", "content": "Be kind."}));
    assert_eq!(saved[1], json!({"role": "user", "content": "Hello\nthere."}));
    assert_eq!(saved[2]["role"], "assistant");
    assert_eq!(ran.stdout, format!("{}\n", saved[2]["content"].as_str().unwrap()));
    assert_eq!(saved.as_array().unwrap().len(), 3);

    // Going on with it asks the model what going on right away would have.
    let went_on = chat(&[], &format!("/load {name}\nAnd\\\nyou?\n"));
    let at_once = chat(&["--system", "Be kind."], "Hello\\\nthere.\nAnd\\\nyou?\n");
    assert_eq!(went_on.stdout.lines().last(), at_once.stdout.lines().last());
    let total = |ran: &Ran| turns(ran).last().map(|[p, _, r]| p + r);
    assert_eq!(total(&went_on), total(&at_once));
}

#[test]
fn commands_say_what_they_did() {
    let dir = tempfile::tempdir().unwrap();
    let name = dir.path().join("c.json");
    let name = name.to_str().unwrap();
    let input = format!("/system Be kind.\n/save {name}\n/load {name}\n/system\n/save {name}\n/clear\n");
    let ran = run_with_input(tiny_minfer("chat", "qwen2", &["--no-history"]), input.as_bytes());
    assert_eq!((ran.code, ran.stdout.as_str()), (0, ""));
    let notes: Vec<_> = ran.stderr.lines().filter(|line| !line.contains("chat template")).collect();
    let wanted = [
        "note: the system message is set".to_owned(),
        format!("note: saved 1 message to {name}"),
        format!("note: going on after 1 message from {name}"),
        "note: no system message from now on".to_owned(),
        format!("note: saved 0 messages to {name}"),
        "note: the conversation is forgotten".to_owned(),
    ];
    assert_eq!(notes, wanted);
}

#[test]
fn in_a_pipe_the_first_error_ends_it() {
    for (input, naming) in [
        ("/bogus\n", "there is no command /bogus"),
        ("/regen\n", "there is no reply yet"),
        ("/load /nonexistent.json\n", "cannot read /nonexistent.json"),
        ("/save\n", "/save needs a file name"),
    ] {
        let ran = run_with_input(tiny_minfer("chat", "llama", &[]), input.as_bytes());
        assert_eq!((ran.code, ran.stdout.as_str()), (4, ""));
        assert!(ran.stderr.contains(naming), "{}", ran.stderr);
    }
}

#[test]
fn k02_a_message_that_does_not_fit_is_refused() {
    let ran = run_with_input(tiny_minfer("chat", "llama", &["-c", "16"]), b"this is far too long\n");
    assert_eq!(ran.code, 4);
    assert!(
        ran.stderr.ends_with(
            "error: the prompt has 18 tokens, the context holds 16; /clear starts anew, -c makes it longer\n"
        ),
        "{}",
        ran.stderr
    );
}

#[test]
fn a_model_without_a_template_goes_on_with_the_text() {
    let ran = run_with_input(tiny_minfer("chat", "llama", &["-n", "4", "--temp", "0"]), b"hello\n");
    assert_eq!(ran.code, 0);
    assert_eq!(ran.stderr, "note: the model has no chat template: it goes on with the text so far\n");
    let raw =
        crate::support::prints(tiny_minfer("run", "llama", &["--raw", "-n", "4", "--temp", "0", "hello"]));
    assert_eq!(ran.stdout, raw);
}

/// A model whose template refuses two messages of one role in a row.
#[test]
fn c04_a_template_that_refuses_is_an_error_with_its_own_words() {
    let dir = tempfile::tempdir().unwrap();
    let model = dir.path().join("strict.gguf");
    let template = "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}\
        {{ raise_exception('roles must alternate') }}{% endif %}{{ m.content }}{% endfor %}";
    std::fs::write(&model, crate::support::tiny_with_template(template)).unwrap();
    let conversation = dir.path().join("c.json");
    let two = r#"[{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]"#;
    std::fs::write(&conversation, two).unwrap();
    let chat = |input: String| {
        let mut command = crate::support::bare();
        command.args(["chat", "-n", "2", "-m", model.to_str().unwrap()]);
        run_with_input(command, input.as_bytes())
    };
    let ran = chat(format!("/load {}\nc\n", conversation.display()));
    assert_eq!((ran.code, ran.stdout.as_str()), (4, ""));
    assert!(ran.stderr.contains("roles must alternate"), "{}", ran.stderr);
    // The same template accepts what alternates.
    assert_eq!(chat("c\nd\n".to_owned()).code, 0);
}
