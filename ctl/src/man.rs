//! The manual page lvsctl(8), made from the same tables as the parser.

use crate::cli::{DEFAULT_SOCKET, own_options, own_subcommands};
use crate::grammar::{COMMANDS, Cmd, OPTIONS, OptSpec, Section};
use crate::help::{command_words, option_words};

/// The page in man(7) macros.
pub fn man_page() -> String {
    let mut page = String::from(
        ".\\\" Made by `cargo run -p lvsctl --example man`; edit ctl/src/grammar.rs and ctl/src/man.rs instead.\n\
         .TH LVSCTL 8 \"\" \"lvsd\" \"System Administration\"\n",
    );
    section(&mut page, "NAME");
    text(&mut page, "lvsctl - administers lvsd, a user-space Linux Virtual Server director");
    section(&mut page, "SYNOPSIS");
    text(&mut page, "lvsctl [--socket PATH] [COMMAND [OPTION]...]");
    page.push_str(".br\n");
    text(&mut page, "lvsctl [--socket PATH] SUBCOMMAND [ARGUMENT]...");
    section(&mut page, "DESCRIPTION");
    text(
        &mut page,
        "lvsctl has the commands, options, output and exit statuses of ipvsadm 1.31, and speaks to the socket of \
         lvsd(8). The command comes before all options; without any, services are listed. Letters may be joined \
         (-Ln, -At 192.0.2.1:80), long names must be written out, and a value may stand in the same word \
         (-srr, --scheduler=rr).",
    );
    section(&mut page, "COMMANDS");
    for command in COMMANDS {
        entry(&mut page, &format!("{} {}", command_words(command), command.synopsis), command.doc);
        let takes: Vec<String> = OPTIONS.iter().filter(|o| takes(o, command.cmd)).map(name).collect();
        if !takes.is_empty() {
            page.push_str(".br\n");
            text(&mut page, &format!("Options: {}.", takes.join(", ")));
        }
    }
    section(&mut page, "SUBCOMMANDS");
    for sub in own_subcommands() {
        entry(&mut page, &sub.usage, &sub.doc);
    }
    section(&mut page, "OPTIONS");
    page.push_str(".SS Before the command\n");
    for option in own_options() {
        entry(&mut page, &option.usage, &option.doc);
    }
    for part in Section::ALL {
        page.push_str(&format!(".SS {}\n", part.title()));
        for option in OPTIONS.iter().filter(|o| o.section == part) {
            entry(&mut page, &option_words(option), option.doc);
        }
    }
    section(&mut page, "EXIT STATUS");
    for (status, meaning) in EXIT_STATUS {
        entry(&mut page, status, meaning);
    }
    section(&mut page, "ENVIRONMENT");
    entry(&mut page, "LVSD_SOCKET", "The daemon's socket where --socket does not name one.");
    section(&mut page, "FILES");
    entry(&mut page, DEFAULT_SOCKET, "The daemon's socket by default.");
    entry(
        &mut page,
        "/run/lvsd/realserver-*",
        "What `realserver setup' has changed, with what was before; a file for each network namespace, by its number.",
    );
    section(&mut page, "DIFFERENCES FROM IPVSADM");
    for difference in DIFFERENCES {
        entry(&mut page, "*", difference);
    }
    section(&mut page, "EXAMPLES");
    page.push_str(".nf\n");
    for line in EXAMPLES {
        page.push_str(&escape(line));
        page.push('\n');
    }
    page.push_str(".fi\n");
    section(&mut page, "SEE ALSO");
    text(&mut page, "lvsd(8), ipvsadm(8)");
    page
}

const EXIT_STATUS: [(&str, &str); 4] = [
    ("0", "Done."),
    (
        "1",
        "A listing, a setting or a status that the daemon refused; `realserver check' has found something wrong.",
    ),
    ("2", "A wrong value or combination of options; no daemon on the socket."),
    ("255", "A change that the daemon refused; an unknown option; no command."),
];

const DIFFERENCES: [&str; 5] = [
    "Error lines begin with ipvsadm's words and go on to name the option, its value and its range.",
    "--restore tells the number of a wrong line. Like ipvsadm it goes on after a refusal and an unknown option, and \
     stops at a wrong value and at a line without a command, comments among them.",
    "-M may stand before the service, and must be a whole number for an IPv6 service.",
    "[192.0.2.1]:80 is refused; ipvsadm takes it for the address without a port.",
    "Names are waited for: ten seconds for one in a command, three for one in a listing, after which numbers are \
     printed.",
];

const EXAMPLES: [&str; 7] = [
    "lvsctl -A -t 192.0.2.1:80 -s wrr",
    "lvsctl -a -t 192.0.2.1:80 -r 10.0.0.11:8080 -m -w 3",
    "lvsctl -Ln --stats",
    "lvsctl -S -n > rules; lvsctl -C; lvsctl -R < rules",
    "lvsctl sysctl expire_nodest_conn=1",
    "lvsctl realserver setup --vip 192.0.2.1 --mode ipip --dev eth0",
    "lvsctl realserver check --vip 192.0.2.1 --mode ipip --dev eth0 --port 80",
];

fn takes(option: &OptSpec, cmd: Cmd) -> bool {
    option.legal.is_some_and(|legal| {
        [legal.required, legal.allowed, legal.exclusive].iter().any(|commands| commands.contains(&cmd))
    })
}

fn name(option: &OptSpec) -> String {
    match option.short {
        Some(letter) => format!("-{letter}"),
        None => format!("--{}", option.long),
    }
}

fn section(page: &mut String, title: &str) {
    page.push_str(&format!(".SH {title}\n"));
}

fn entry(page: &mut String, words: &str, doc: &str) {
    page.push_str(&format!(".TP\n\\fB{}\\fR\n", escape(words.trim_end())));
    text(page, doc);
}

fn text(page: &mut String, words: &str) {
    page.push_str(&escape(words));
    page.push('\n');
}

/// Text to man(7): hyphens that are typed, backslashes, and no line that reads as a macro.
fn escape(words: &str) -> String {
    let escaped = words.replace('\\', "\\e").replace('-', "\\-");
    if escaped.starts_with(['.', '\'']) { format!("\\&{escaped}") } else { escaped }
}
